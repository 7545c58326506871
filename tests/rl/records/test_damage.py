"""Errors of RL's own files name the file and the fields, and show no value."""

import pytest
from pydantic import BaseModel, ValidationError

from rl.records.damage import damaged, fields_of


class Inner(BaseModel):
    number: int


class Outer(BaseModel):
    inner: list[Inner]


def test_fields_are_named_by_their_path_once_each() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"inner": [{"number": "s3cret"}, {}]})
    assert fields_of(caught.value) == "inner.0.number, inner.1.number"
    with pytest.raises(ValidationError) as whole:
        Outer.model_validate("s3cret")
    assert fields_of(whole.value) == "the whole"


def test_the_damaged_file_is_named() -> None:
    error = damaged("rl/loader.json", "the reason")
    assert error.details == {"file": "rl/loader.json"} and "the reason" in str(error)
