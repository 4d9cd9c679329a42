"""The Jobs that pull and remove models, and their policies; pure."""
