use crate::Options;
pub fn measure(_: &Options) {}
