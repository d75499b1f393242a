"""The proxies that the cluster suite of the bench measures."""

from types import SimpleNamespace

from shadeproxy_bench import owned


def test_several_proxies_run_alone_beside_one_cluster_in_turn(tmp_path, monkeypatch):
    directories = []

    class Still:
        served = None

        def __init__(self, _name, directory, _settings, **_options):
            directory.mkdir()
            directories.append(directory)

        def start(self): ...

        def stop(self): ...

    monkeypatch.setattr(owned, "Member", Still)
    monkeypatch.setattr(owned, "settings_of", lambda *_arguments, **_options: {})
    cluster = SimpleNamespace(work=tmp_path, source=SimpleNamespace(url=""))
    for _ in range(2):
        with owned.alone(cluster, ram_bytes=1):
            pass
    assert len(set(directories)) == 2
