"""Questions made from the pages of a corpus, in the pages' own words, and the reading of those pages."""
