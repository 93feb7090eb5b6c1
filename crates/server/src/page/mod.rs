//! The page at `/`: its files, as browsers get them, and the policy that it keeps to. It needs no key and asks for nothing elsewhere;
//! what it does is ordinary API requests of the same origin.

/// One file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct File {
    /// Path of the URL.
    pub path: &'static str,
    /// `Content-Type`.
    pub content_type: &'static str,
    /// What is sent.
    pub body: &'static str,
}

/// `Content-Security-Policy` of every file. The page makes no markup from text, which the last two directives enforce.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Everything that belongs to the page.
pub const FILES: [File; 16] = [
    file("/", "text/html; charset=utf-8", include_str!("index.html")),
    file("/page/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    file("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    file("/page/api.js", SCRIPT, include_str!("api.js")),
    file("/page/chat.js", SCRIPT, include_str!("chat.js")),
    file("/page/code.js", SCRIPT, include_str!("code.js")),
    file("/page/dom.js", SCRIPT, include_str!("dom.js")),
    file("/page/facts.js", SCRIPT, include_str!("facts.js")),
    file("/page/inline.js", SCRIPT, include_str!("inline.js")),
    file("/page/main.js", SCRIPT, include_str!("main.js")),
    file("/page/markdown.js", SCRIPT, include_str!("markdown.js")),
    file("/page/notice.js", SCRIPT, include_str!("notice.js")),
    file("/page/panels.js", SCRIPT, include_str!("panels.js")),
    file("/page/session.js", SCRIPT, include_str!("session.js")),
    file("/page/store.js", SCRIPT, include_str!("store.js")),
    file("/page/view.js", SCRIPT, include_str!("view.js")),
];

const fn file(path: &'static str, content_type: &'static str, body: &'static str) -> File {
    File { path, content_type, body }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a file of the page asks for, the table has.
    #[test]
    fn the_table_has_every_file_that_the_page_asks_for() {
        let has = |path: &str| FILES.iter().any(|file| file.path == path);
        for file in FILES {
            for before in ["from \"./", "=\"page/"] {
                for found in file.body.split(before).skip(1) {
                    let name = found.split('"').next().unwrap();
                    assert!(has(&format!("/page/{name}")), "{} asks for {name}", file.path);
                }
            }
        }
    }

    /// A strict policy would stop them in the browser; here they are found earlier.
    #[test]
    fn no_file_makes_code_or_markup_from_text() {
        for file in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "onclick=\"",
                "style=\"",
                "//cdn",
            ] {
                assert!(!file.body.contains(word), "{} has {word}", file.path);
            }
        }
    }
}
