"""Once. In order. To the end: durable guarantees on the database you already have."""
