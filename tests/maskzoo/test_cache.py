from maskzoo.cache import cache_folder


def test_the_folder_is_stated_or_the_home_folders(monkeypatch, tmp_path):
    monkeypatch.setenv("MASKZOO_DATA", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x"
    monkeypatch.delenv("MASKZOO_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "maskzoo"
