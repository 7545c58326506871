"""Records, base URLs, and the one canonical form of JSON."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from gym.protocol import WrittenFile, canonical_json, digest_of, parse_json
from gym.protocol.records import BaseUrl


@pytest.mark.parametrize("url", ["http://host", "https://host:8000/v1", "http://[::1]:80"])
def test_a_base_url_is_kept_as_it_is(url: str) -> None:
    assert TypeAdapter(BaseUrl).validate_python(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "host:80",
        "ftp://host",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://ho st",
        "http://user:secret@host",
        "http://host?a=secret",
        "http://host#secret",
    ],
)
def test_any_other_text_is_no_base_url_and_is_not_quoted(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(BaseUrl).validate_python(url)
    assert "secret" not in refused.value.errors()[0]["msg"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", ".hidden", ""])
def test_the_path_of_a_written_file_is_relative(path: str) -> None:
    with pytest.raises(ValidationError):
        WrittenFile(path=path, bytes=1, sha256="0" * 64)


def test_equal_values_have_one_form_and_one_digest() -> None:
    assert canonical_json({"b": [1, "\u00e4"], "a": None}) == '{"a":null,"b":[1,"ä"]}'.encode()
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of([1, 2]) != digest_of([2, 1])


def test_json_keeps_its_order_and_refuses_what_python_adds() -> None:
    """Break: gym/protocol/records.py: leave `parse_constant` out."""
    assert list(parse_json('{"b": 1, "a": 2}')) == ["b", "a"]
    for text in ("NaN", "[-Infinity]", '{"a": Infinity}', "", "{", b"\xff", "[" * 100_000):
        with pytest.raises(ValueError):
            parse_json(text)
