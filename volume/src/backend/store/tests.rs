//! A pool over files.
