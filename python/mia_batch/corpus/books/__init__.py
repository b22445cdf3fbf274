"""Files that are whole documents: their text, and what they say of themselves."""
