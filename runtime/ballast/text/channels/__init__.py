"""Replies and conversations whose messages are on channels: the harmony format of gpt-oss."""
