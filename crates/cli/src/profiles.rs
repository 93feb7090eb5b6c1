//! `basert profiles`: the built-in quantisation profiles.

use basert_convert::Profile;
use serde_json::json;

use crate::args::ProfilesArgs;
use crate::convert::failed;
use crate::failure::{Failure, Outcome};
use crate::output;

/// Runs the command.
pub fn run(args: &ProfilesArgs) -> Outcome {
    let profiles = Profile::built_in().map_err(|e| failed(&e))?;
    if let Some(name) = &args.name {
        return match profiles.iter().find(|profile| profile.name == *name) {
            Some(profile) => output::print(profile.text()),
            None => Err(Failure::new(format!("there is no built-in profile {name}"))
                .hint("`basert profiles` lists them")),
        };
    }
    let comment = |profile: &Profile| profile.comment.clone().unwrap_or_default();
    if args.json {
        let line = |p: &Profile| json!({"name": p.name, "arch": p.arch, "comment": comment(p)});
        return output::print_json(&profiles.iter().map(line).collect::<Vec<_>>());
    }
    let line = |p: &Profile| format!("{:<24} {}\n", p.name, comment(p));
    output::print(&profiles.iter().map(line).collect::<String>())
}
