"""Downloads against a hub on 127.0.0.1: asked for only, pinned, without code, resumable, with progress; the command line around it."""

import dataclasses
import json

import pytest

from polestar.models import cli, download, machine, registry
from polestar.models.checkpoint import load_model, locate
from polestar.models.machine import Gpu, Machine, Size
from polestar.models.registry import Entry
from tests.fake_hub import FakeHub
from tests.goldens import FOLDER
from tests.model_zoo import oracle, save_qwen

SHA = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/tiny-dream"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    source = save_qwen(oracle("qwen2"), tmp_path / "source", "dream", shard="60KB")
    (source / "modeling_dream.py").write_text("raise SystemExit('this code ran')")
    (source / "README.md").write_text("read me")
    (source / "tokenizer_config.json").write_text(json.dumps({"chat_template": "x"}))
    hub = FakeHub(source, REPO, SHA)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    yield hub
    hub.close()


@pytest.fixture
def entry(monkeypatch):
    entry = Entry(name="tiny-dream", repo=REPO, revision=SHA, family="dream", size=Size(linear=50_000, other=10_000), licence="MIT")
    monkeypatch.setattr(registry, "REGISTRY", (*registry.REGISTRY, entry))
    return entry


def cache(tmp_path):
    """snapshot_download reads its default when it is called with none: point it at the test's cache."""
    return tmp_path / "cache"


def test_the_pinned_revision_is_fetched_without_code_and_loads_by_name(hub, entry, tmp_path):
    seen = []
    path = download.download(entry, endpoint=hub.url, progress=lambda done, total: seen.append((done, total)))
    assert path.name == SHA and path.is_relative_to(cache(tmp_path))
    names = {f.name for f in path.iterdir()}
    assert "config.json" in names and "model.safetensors.index.json" in names
    assert not names & {"modeling_dream.py", "README.md"}
    assert not [a for a in hub.asked if a.endswith((".py", ".md"))]
    assert all(SHA in a for a in hub.asked)
    total = sum(len(hub.files[n]) for n in names)
    assert seen[-1] == (total, total)
    assert locate("tiny-dream") == ("tiny-dream", SHA, path)
    loaded = load_model("tiny-dream", device="cpu")
    assert (loaded.name, loaded.revision, loaded.config.shift) == ("tiny-dream", SHA, True)
    assert load_model(path, device="cpu").name == "tiny-dream"


def test_what_is_here_is_not_fetched_again(hub, entry):
    path = download.download(entry, endpoint=hub.url)
    hub.asked.clear()
    assert download.download(entry, endpoint=hub.url) == path and download.cached(entry) == path
    assert hub.asked == []


def test_an_interrupted_download_goes_on_where_it_stopped(hub, entry):
    shards = sorted(n for n in hub.files if n.endswith(".safetensors"))
    hub.gone = {shards[-1]}
    with pytest.raises(download.DownloadError, match="run the same command again") as error:
        download.download(entry, endpoint=hub.url)
    assert "\n" not in str(error.value)
    assert download.cached(entry) is None
    with pytest.raises(FileNotFoundError, match=r"tiny-dream is not on this machine; .*download tiny-dream"):
        load_model("tiny-dream")
    hub.gone = set()
    path = download.download(entry, endpoint=hub.url)
    assert {n: hub.sent[n] for n in shards} == {n: len(hub.files[n]) for n in shards}  # each byte once
    assert {n: (path / n).read_bytes() for n in shards} == {n: hub.files[n] for n in shards}


def test_a_transfer_that_breaks_off_is_taken_up_at_the_byte(hub, entry, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 4096)  # what the client writes at a time
    hub.cut = 2 * 4096
    path = download.download(entry, endpoint=hub.url)
    shards = [n for n in hub.files if n.endswith(".safetensors")]
    assert {n: hub.sent[n] for n in shards} == {n: len(hub.files[n]) for n in shards}
    assert all((path / n).read_bytes() == hub.files[n] for n in shards)


def test_without_a_pinned_revision_the_commit_of_main_is_recorded(hub, entry):
    loose = dataclasses.replace(entry, revision="")
    path = download.download(loose, endpoint=hub.url)
    assert path.name == SHA and download.cached(loose) == path


def test_a_directory_of_ones_own(hub, entry, tmp_path):
    path = download.download(entry, directory=tmp_path / "mine", endpoint=hub.url)
    assert path == (tmp_path / "mine").resolve() and load_model(path, device="cpu").config.family == "dream"
    hub.asked.clear()
    assert download.download(entry, directory=tmp_path / "mine", endpoint=hub.url) == tmp_path / "mine" and hub.asked == []


def test_offline_switches_are_honoured(hub, entry, monkeypatch):
    with pytest.raises(download.DownloadError, match=r"downloads are off \(--offline\)"):
        download.download(entry, offline=True, endpoint=hub.url)
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(download.DownloadError, match="HF_HUB_OFFLINE"):
        download.download(entry, endpoint=hub.url)
    assert hub.asked == []


def test_what_cannot_be_had_is_one_sentence(hub, entry, monkeypatch):
    with pytest.raises(download.DownloadError, match="someone/other") as error:
        download.download(dataclasses.replace(entry, repo="someone/other"), endpoint=hub.url)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(download, "_free", lambda _path: 1000)
    with pytest.raises(download.DownloadError, match=r"takes 0\.1 MB and .* has 0\.0 MB free"):
        download.download(entry, endpoint=hub.url)
    with pytest.raises(download.DownloadError, match="bundled"):
        download.download(registry.find("demo"))


def test_progress_may_stop_the_download(hub, entry):
    class Stopped(Exception):
        pass

    def stop(done, total):
        raise Stopped

    with pytest.raises(Stopped):
        download.download(entry, endpoint=hub.url, progress=stop)


def test_before_a_download_needs_machine_and_ways_are_told():
    llada = registry.find("LLaDA-8B-Instruct")
    small = download.before(llada, Machine(ram=12 * 10**9))
    assert "needs 16.0 GB in bfloat16 (9.1 GB in 8-bit, 5.7 GB in 4-bit)" in small[0] and "this machine has 12.0 GB" in small[0]
    assert "does not fit" in small[1] and "4-bit" in small[1] and "demo" in small[1]
    gpu = Gpu(index=0, name="L4", free=23 * 10**9, total=24 * 10**9, native_bf16=True)
    assert download.before(llada, Machine(gpus=(gpu,), ram=10**10))[1] == "It will run as bfloat16 on L4."


# -- the command line


def test_list_names_everything(capsys):
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    for entry in registry.REGISTRY:
        assert entry.name in out and entry.licence in out
    assert "08b83a6feb" in out and "16.0 GB" in out


def test_show_check_and_unknown_names(capsys):
    assert cli.main(["show", "dream-v0-instruct-7b"]) == 0
    out = capsys.readouterr().out
    assert "15.2 GB in bfloat16" in out and "this machine has" in out
    assert cli.main(["show", "demo"]) == 0
    assert cli.main(["check", str(FOLDER / "dream_tiny")]) == 0
    assert "shift yes; all tensors present" in capsys.readouterr().out
    assert cli.main(["show", "LLaDA-9B"]) == 1
    assert "no model named 'LLaDA-9B'" in capsys.readouterr().err
    assert cli.main(["download", "SDAR-4B-Chat"]) == 1
    assert "block-causal" in capsys.readouterr().err


def test_check_names_a_fault(tmp_path, capsys):
    directory = save_qwen(oracle("qwen2"), tmp_path / "m", "dream", num_hidden_layers=2)
    assert cli.main(["check", str(directory)]) == 1
    assert "model.layers.2." in capsys.readouterr().err


def test_download_asks_first_and_fetches_nothing_without_an_answer(hub, entry, capsys, monkeypatch):
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(ram=10**9))
    assert cli.main(["download", "tiny-dream"]) == 1
    err = capsys.readouterr().err
    assert "this machine has 1.0 GB" in err and "nothing was fetched" in err and hub.asked == []
    assert cli.main(["download", "tiny-dream", "--offline"]) == 1
    assert "--offline" in capsys.readouterr().err and hub.asked == []


def test_download_with_yes_prints_where_it_is(hub, entry, capsys, monkeypatch):
    real = download.download
    monkeypatch.setattr(download, "download", lambda *a, **k: real(*a, **k, endpoint=hub.url))
    assert cli.main(["download", "tiny-dream", "--yes"]) == 0
    out = capsys.readouterr().out.strip()
    assert out.endswith(SHA)
    assert cli.main(["download", "tiny-dream"]) == 0 and capsys.readouterr().out.strip() == out
