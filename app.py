"""`python app.py`: the page of Polestar."""

from ui.launch import main

if __name__ == "__main__":
    raise SystemExit(main())
