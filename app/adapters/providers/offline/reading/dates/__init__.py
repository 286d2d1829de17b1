"""Days and periods, and questions about them."""
