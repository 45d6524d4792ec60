"""Numbers as people read them. Every function says an en dash for None."""

NONE = "–"
Number = int | float


def fixed(value: Number | None, digits: int = 2) -> str:
    """42.968 -> 42.97, and a value too small for its digits in three significant ones."""
    if value is None:
        return NONE
    if value and abs(value) < 0.5 * 10**-digits:
        return f"{value:.2e}"
    return f"{value:,.{digits}f}"


def whole(value: Number | None) -> str:
    """4096 -> 4,096."""
    return NONE if value is None else f"{value:,.0f}"


def many(value: Number | None, thing: str) -> str:
    """3, "row" -> 3 rows; 1, "row" -> 1 row."""
    return f"{whole(value)} {thing}{'' if value == 1 else 's'}"


def looked(rows: object) -> str:
    """Over which rows mass, overlap and top-1 were taken."""
    known = isinstance(rows, int) and not isinstance(rows, bool)
    return f"the last {many(rows, 'row')} looked at" if known else "the last rows"  # type: ignore[arg-type]


def signed_percent(value: Number | None, digits: int = 2) -> str:
    """0.0558 -> +5.58 %, with a real minus sign."""
    return NONE if value is None else f"{100 * value:+,.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def signed(value: Number | None, digits: int = 4) -> str:
    """0.0123 -> +0.0123, with a real minus sign and no sign on nought."""
    if value is None:
        return NONE
    return f"{'+' if value > 0 else ''}{fixed(value, digits)}".replace("-", "\N{MINUS SIGN}")


def short_number(value: Number | None) -> str:
    """0.00012345 -> 0.000123, 16384 -> 16,384: three significant digits, whole numbers whole."""
    if value is None or value == int(value):
        return whole(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def yes(value: bool | None) -> str:
    """True -> yes."""
    return NONE if value is None else "yes" if value else "no"


def percent(value: Number | None, digits: int = 1) -> str:
    """0.125 -> 12.5 %."""
    return NONE if value is None else f"{100 * value:.{digits}f} %"


def megabytes(value: Number | None) -> str:
    """Bytes in MB of 1e6 bytes, without the unit."""
    return NONE if value is None else fixed(value / 1e6, 2 if abs(value) < 1e9 else 1)


def short(text: object, limit: int) -> str:
    """The text, or its beginning with an ellipsis."""
    text = str(text)
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def ratio(over: Number | None, under: Number | None) -> float | None:
    """over / under where that is a number."""
    return over / under if over is not None and under else None
