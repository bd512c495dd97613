"""The local engines behind `hf:`: slots and batches. Private to `policy`; nothing else imports from here but training."""
