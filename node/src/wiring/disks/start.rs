//! Shows the disks of the file when a node starts.

use config::Config;
use sessions::ObjectError;

use crate::wiring::inside::Inside;

impl Inside {
    /// Shows the disks of the file.
    pub(crate) fn show_disks(&self, config: &Config) -> Result<(), Vec<ObjectError>> {
        let mut errors = Vec::new();
        for disk in &config.disks {
            let source = self.objects().source(disk);
            let shown = source.and_then(|source| {
                self.disks.show(disk, source).map_err(|text| ObjectError {
                    place: config.place(&disk.lines, "socket"),
                    object: format!("disk {:?}", disk.name),
                    text,
                })
            });
            match shown {
                Ok(shown) => self.objects().disks.push(shown),
                Err(error) => errors.push(error),
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }
}
