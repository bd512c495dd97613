"""Several questions, one after the other: what a follow-up means, what asks nothing, and the conversation itself."""
