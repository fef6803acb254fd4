//! A fake system for tests.
