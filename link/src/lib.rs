//! How a session's datagrams leave and arrive.
