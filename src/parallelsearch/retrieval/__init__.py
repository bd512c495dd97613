"""Search backends: `base` says what one is; each other module is one backend or a part that several of them share."""
