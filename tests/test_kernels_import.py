"""Importing the kernels: without Triton, and beside the library that bears the same name."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from transformers.utils.import_utils import KERNELS_MIN_VERSION

ROOT = Path(__file__).resolve().parent.parent


def python(code: str, *paths: Path, cwd: Path) -> str:
    """Output of a fresh interpreter with `paths` in front of its search path. Fails with its error output."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    env.pop("TRITON_INTERPRET", None)
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def library(tmp_path) -> Path:
    """A folder with a stand-in for the other library: package, module of its own, and the metadata that transformers asks for."""
    package = tmp_path / "elsewhere" / "kernels"
    package.mkdir(parents=True)
    names = "Device, LayerRepository, Mode, get_kernel, register_kernel_mapping, replace_kernel_forward_from_hub"
    (package / "__init__.py").write_text(f"from .layer import {names}\n__version__ = {KERNELS_MIN_VERSION!r}\nNOT_LOADED = None\n")
    (package / "layer.py").write_text("\n".join(f"class {n}:\n    home = __name__\n" for n in names.split(", ")))
    info = package.parent / f"kernels-{KERNELS_MIN_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kernels\nVersion: {KERNELS_MIN_VERSION}\n")
    return package.parent


def test_without_triton_everything_runs_on_pytorch(tmp_path):
    out = python(
        """
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "triton":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Block())
        import torch
        from kernels import _dispatch, dequant_norm, drift, formats, kmeans, nvfp4, proxy, rope_scatter
        assert _dispatch.triton is None
        packed, scales = nvfp4.quantize_nvfp4(torch.full((2, 16), 6.0))
        assert torch.equal(nvfp4.dequantize_nvfp4(packed, scales), torch.full((2, 16), 6.0))
        try:
            nvfp4.quantize_nvfp4(torch.ones(2, 16), path="triton")
        except RuntimeError as error:
            print(error)
        print(_dispatch.status())
        """,
        ROOT,
        cwd=tmp_path,
    )
    assert "Triton cannot be imported" in out
    assert "PyTorch" in out


def test_import_asks_for_no_driver_and_no_tensor_library(tmp_path):
    out = python("import sys, kernels; print('torch' in sys.modules, 'triton' in sys.modules)", ROOT, cwd=tmp_path)
    assert out.split() == ["False", "False"]
    python("import torch, kernels.proxy, kernels.nvfp4; assert not torch.cuda.is_initialized()", ROOT, cwd=tmp_path)


@pytest.mark.parametrize("order", ["import kernels, transformers", "import transformers, kernels"])
def test_transformers_does_not_take_ours_for_the_library(order, tmp_path):
    out = python(f"{order}\nfrom transformers.utils import is_kernels_available\nprint(is_kernels_available(), kernels.__file__)", ROOT, cwd=tmp_path)
    available, path = out.split(maxsplit=1)
    assert available == "False"
    assert Path(path.strip()) == ROOT / "kernels" / "__init__.py"


USE_BOTH = """
from kernels import LayerRepository, Mode
from kernels.layer import Device
from transformers.utils import is_kernels_available
assert is_kernels_available()
assert LayerRepository.home == Device.home == "kernels.layer"
import torch
from kernels import nvfp4
from kernels.proxy import mean_kl
assert nvfp4.__file__.startswith({root!r}), nvfp4.__file__
p = torch.softmax(torch.randn(2, 3, 5), -1)
assert not mean_kl(p, p).any()
print("both")
"""


@pytest.mark.parametrize("order", ["import polestar, transformers", "import transformers, polestar"])
def test_ours_first_on_the_path(order, library, tmp_path):
    assert python(order + USE_BOTH.format(root=str(ROOT)), ROOT, library, cwd=tmp_path).strip() == "both"


@pytest.mark.parametrize("order", ["import polestar, transformers", "import transformers, polestar"])
def test_library_first_on_the_path(order, library, tmp_path):
    assert python(order + USE_BOTH.format(root=str(ROOT)), library, ROOT, cwd=tmp_path).strip() == "both"


def test_an_unknown_name_is_an_attribute_error(tmp_path):
    python("import kernels\ntry:\n    kernels.nothing_like_this\nexcept AttributeError as e:\n    print(e)\nelse:\n    raise SystemExit(1)", ROOT, cwd=tmp_path)
