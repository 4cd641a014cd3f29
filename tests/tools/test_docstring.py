"""The docstring reader finds the description and the parameters in three styles."""

from __future__ import annotations

from laneway.tools._docstring import parse_docstring


def test_google_style_gives_description_and_parameters():
    """Everything before the sections is the description; continuation lines belong to their parameter."""
    found = parse_docstring(
        """Look up the weather.

        Uses the nearest station.

        Args:
            city: The city's name,
                as people write it: "Oslo".
            days (int, optional): How many days.
            unit (Literal["c", "f"]): The unit.
            **extra: not shown

        Returns:
            A forecast.

        Raises:
            ToolError: no such city.
        """
    )
    assert found.description == "Look up the weather.\n\nUses the nearest station."
    assert found.parameters["city"] == 'The city\'s name, as people write it: "Oslo".'
    assert found.parameters["days"] == "How many days."
    assert found.parameters["unit"] == "The unit."


def test_numpy_style_gives_description_and_parameters():
    """Underlined sections; one entry may name several parameters."""
    found = parse_docstring(
        """
        Add numbers.

        Parameters
        ----------
        a, b : int
            The numbers
            to add.
        note : str, optional
            A note.
        bare

        Returns
        -------
        int
            The sum.

        Examples
        --------
        >>> add(1, 2)
        3
        """
    )
    assert found.parameters == {"a": "The numbers to add.", "b": "The numbers to add.", "note": "A note.", "bare": ""}
    assert found.description == "Add numbers.\n\nExamples\n--------\n>>> add(1, 2)\n3"


def test_sphinx_style_gives_description_and_parameters():
    """Fields with continuation lines; fields that say nothing of a parameter are left out."""
    found = parse_docstring(
        """Send a message.

        :param str to: Who gets it,
            by address.
        :param body: The text.
        :type body: str
        :returns: nothing
        :raises ToolError: when offline
        """
    )
    assert found.description == "Send a message."
    assert found.parameters == {"to": "Who gets it, by address.", "body": "The text."}


def test_a_note_is_part_of_the_description_and_returns_are_not():
    """The model should read warnings, not the Python return type."""
    found = parse_docstring("Delete it.\n\nNote:\n    It cannot be undone.\n\nReturns:\n    None\n\nLast words.")
    assert found.description == "Delete it.\n\nNote:\n    It cannot be undone.\n\nLast words."


def test_a_sentence_that_looks_like_a_heading_stays():
    """Only known headings start a section: "Usage:" or a colon in the text do not."""
    text = "Search files.\n\nUsage: give a pattern.\n\nPatterns:\n    *.py"
    assert parse_docstring(text).description == text


def test_nothing_gives_nothing():
    """No docstring, an empty one, a blank one."""
    for text in (None, "", "  \n "):
        found = parse_docstring(text)
        assert (found.description, found.parameters) == ("", {})


def test_paragraphs_of_a_parameter_are_kept():
    """A blank line inside a parameter's text separates paragraphs."""
    found = parse_docstring("X.\n\nArgs:\n    a: First\n        line.\n\n        Second paragraph.\n    b: B")
    assert found.parameters == {"a": "First line.\n\nSecond paragraph.", "b": "B"}
