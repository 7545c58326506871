"""`python -m workers.demo`: what `make demo` runs."""

from __future__ import annotations

from workers.demo.story import main

main()
