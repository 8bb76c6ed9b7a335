//! Price lists and racks that are part of the program.

/// Lists of prices that are part of the program, by name.
pub const PRICE_LISTS: [(&str, &str); 2] = [
    ("slides-2016", include_str!("../../data/prices-slides-2016.toml")),
    ("placeholder", include_str!("../../data/prices-placeholder.toml")),
];

/// Racks that are part of the program, by name.
pub const RACKS: [(&str, &str); 3] = [
    ("r930-3", include_str!("../../data/rack-r930-3.toml")),
    ("r930-6", include_str!("../../data/rack-r930-6.toml")),
    ("rack", include_str!("../../data/rack-example.toml")),
];
