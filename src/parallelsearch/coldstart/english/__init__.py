"""The cold start's rules for English questions and encyclopedia pages, in the style of HotpotQA and NQ.

`questions` reads a question, `evidence` finds the words that decide, `thoughts` words what is thought; `lessons` has a lesson
for each kind; `from_pages` and `recombined` make new questions. `rules` is what the cold start sees of it.
"""
