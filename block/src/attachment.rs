//! The client's side of an attachment: one disk on one volume, across channels and reconnects.

/// One disk on one volume.
#[derive(Debug)]
pub struct Attachment {
    name: String,
}

impl Attachment {
    /// An attachment called `name`, unclaimed.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned() }
    }

    /// Its name, as the server's records have it.
    pub fn name(&self) -> &str {
        &self.name
    }
}
