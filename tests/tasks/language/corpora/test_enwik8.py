import gzip
import hashlib
import http.server
import threading
import zipfile

import pytest

from maskzoo.registry import datasets
from maskzoo.tasks.language.corpora import enwik8
from maskzoo.tasks.language.corpora.enwik8 import Enwik8

TEXT = bytes(range(32, 132)) * 20  # stands in for the real file: 2000 bytes


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """A cache folder of its own, a small file in the place of the real one, and no network."""
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(enwik8, "SIZE", len(TEXT))
    monkeypatch.setattr(enwik8, "SHA1", hashlib.sha1(TEXT).hexdigest())
    monkeypatch.setattr(enwik8, "ADDRESS", "http://127.0.0.1:9/enwik8.zip")
    return tmp_path


def write(path, text=TEXT):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text))
    elif path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("enwik8", text)
    else:
        path.write_bytes(text)
    return path


def check_parts(corpus):
    parts = [corpus.split(name) for name in ("train", "val", "test")]
    assert [len(documents) for documents in parts] == [1, 1, 1]
    assert [len(documents[0]) for documents in parts] == [1800, 100, 100]
    assert b"".join(documents[0] for documents in parts) == TEXT


@pytest.mark.parametrize("name", ["enwik8", "enwik8.gz", "enwik8.zip"])
@pytest.mark.parametrize("where", ["cache", "file", "folder"])
def test_found(small, name, where):
    path = write(small / ("cache" if where == "cache" else "mine") / name)
    check_parts(Enwik8({"cache": None, "file": str(path), "folder": str(path.parent)}[where]))
    assert not list(small.rglob("*.part"))


def test_real_figures(monkeypatch):
    monkeypatch.undo()
    assert enwik8.SIZE == 10**8
    assert enwik8.SHA1 == "57b8363b814821dc9d47aa4d41f58733519076b2"
    assert enwik8.cuts(enwik8.SIZE) == (90_000_000, 95_000_000)


@pytest.mark.parametrize("text", [TEXT[:-1], TEXT[:-1] + b"?"], ids=["short", "changed"])
@pytest.mark.parametrize("name", ["enwik8", "enwik8.gz", "enwik8.zip"])
def test_other_contents_are_refused(small, name, text):
    path = write(small / "mine" / name, text)
    with pytest.raises(ValueError, match=rf"{path} is not enwik8 or is damaged: .* instead of .*\nRemove it"):
        Enwik8(str(path)).split("val")
    assert not (small / "cache" / "enwik8").exists()


@pytest.mark.parametrize("name", ["enwik8.gz", "enwik8.zip"])
def test_truncated_archive(small, name):
    path = write(small / "mine" / name)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=rf"{path} is damaged"):
        Enwik8(str(path)).split("val")
    assert not list((small / "cache").iterdir())


def test_path_without_the_file(small):
    with pytest.raises(ValueError, match=r"is not enwik8, enwik8\.gz or enwik8\.zip, nor holds one"):
        Enwik8(str(small / "nowhere")).split("train")
    with pytest.raises(ValueError, match="must be one path"):
        Enwik8(["a", "b"])


def test_no_file_and_no_network_names_the_three_ways(small):
    with pytest.raises(ValueError) as error:
        Enwik8().split("train")
    message = str(error.value)
    assert message.count("\n") == 1
    for way in (str(small / "cache"), enwik8.ADDRESS, "data.path=", "pip download", "data/enwik8.gz"):
        assert way in message


@pytest.fixture
def served(small, monkeypatch):
    """A server on this machine that gives the archive; tests may change what it sends."""
    answer = {"body": write(small / "server" / "enwik8.zip").read_bytes(), "missing": 0}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer["body"]) + answer["missing"]))
            self.end_headers()
            self.wfile.write(answer["body"])

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(enwik8, "ADDRESS", f"http://127.0.0.1:{server.server_port}/enwik8.zip")
    monkeypatch.setenv("no_proxy", "*")
    yield answer
    server.shutdown()
    server.server_close()


def test_download(small, served, capsys):
    check_parts(Enwik8())
    assert "downloading" in capsys.readouterr().err
    assert [path.name for path in (small / "cache").iterdir()] == ["enwik8"]
    served["body"] = b""
    check_parts(Enwik8())  # from the cache


@pytest.mark.parametrize("fault", ["cut", "not a zip"])
def test_bad_download_leaves_nothing(small, served, fault):
    if fault == "cut":
        served["missing"] = 10
    else:
        served["body"] = b"<html>gone</html>"
    with pytest.raises(ValueError, match="the connection ended" if fault == "cut" else "is damaged"):
        Enwik8().split("train")
    assert not list(small.glob("cache/*"))


def test_registered():
    assert datasets.get("enwik8") is Enwik8
