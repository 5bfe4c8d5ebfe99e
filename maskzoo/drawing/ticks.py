"""Where an axis carries numbers."""


def tick_step(length: int, most: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that puts at most `most` ticks on `length` places."""
    step = 1
    while -(-length // step) > most:
        step = step * 5 // 2 if str(step)[0] == "2" else step * 2
    return step


def tick_text(label: str) -> str:
    """A label on one line, with invisible characters written out."""
    return repr(label)[1:-1] if not label.isprintable() or label.isspace() else label
