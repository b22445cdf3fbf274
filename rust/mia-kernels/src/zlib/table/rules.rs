//! zlib's rules, as in the search place by place, in the numbers of a table.

use super::text::place;
use crate::zlib::{search, window};

pub(super) use crate::zlib::search::{MAX_TRIES, MAX_TRIES_IF_GOOD};

pub(super) const MIN_LENGTH: u16 = place(search::MIN_LENGTH);
pub(super) const MAX_LENGTH: u16 = place(window::MAX_LENGTH);
pub(super) const MAX_LAZY: u16 = place(search::MAX_LAZY);
pub(super) const GOOD_LENGTH: u16 = place(search::GOOD_LENGTH);
pub(super) const NICE_LENGTH: u16 = place(search::NICE_LENGTH);
pub(super) const MAX_DISTANCE_OF_SHORTEST: u16 = place(search::MAX_DISTANCE_OF_SHORTEST);
