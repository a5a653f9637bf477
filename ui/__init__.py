"""The page. `launch` starts it; everything here may import gradio, and nothing in polestar imports this package."""
