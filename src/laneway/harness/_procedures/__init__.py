"""One procedure per leaf: it reads the leaf, performs at most one kind of effect, and commits the next leaf."""
