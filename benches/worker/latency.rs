//! todo
use crate::Options;
#[derive(clap::Args)]
pub struct Arguments {}
pub fn measure(_: &Options, _: &Arguments) {}
