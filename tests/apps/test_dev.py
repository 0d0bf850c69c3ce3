"""`hami dev scheduler-config`: what kube-scheduler could not read is refused before it is printed."""

from __future__ import annotations

import pytest
import yaml

from hami.apps import dev
from hami.core.errors import ConfigError

URL = "--extender-url=http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], ["--extender-url is required", "http://HOST:PORT"]),
        *(
            ([f"--extender-url={url}"], ["--extender-url", "is not allowed", "http://HOST:PORT"])
            for url in ("http://", "http:", "ftp://a:1", "http://a b", "http://a\nb", "http://a:99999", "http://a:0",
                        "http://a:x", "https:///x", "http://[::1", "http://a/?q", "http://a#f", "http:// ", "a:1")
        ),
        *(
            ([URL, f"--http-timeout={text}"], ["--http-timeout", repr(text), "expected a duration"])
            for text in ("", "xyz", "5", "-5s", "1d", "0", "0s")
        ),
        ([URL, "--scheduler-name="], ["--scheduler-name", "''", "not empty"]),
    ],
)  # fmt: skip
def test_refusals_name_flag_value_and_what_is_allowed(arguments: list[str], says: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        dev.main(["scheduler-config", *arguments])
    for words in says:
        assert words in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://[::1]:9443", "https://hami.example/extender"])
def test_what_is_taken_is_printed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dev.main(["scheduler-config", f"--extender-url={url}/", "--http-timeout=1m30s"]) == 0
    extender = yaml.safe_load(capsys.readouterr().out)["extenders"][0]
    assert extender["urlPrefix"] == url
    assert extender["httpTimeout"] == "1m30s"
    assert extender["enableHTTPS"] is url.startswith("https")
