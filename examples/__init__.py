"""Small resource servers, one for each way of taking part, and rows for them."""
