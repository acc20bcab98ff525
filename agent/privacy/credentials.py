"""Secrets in a text: keys of known services, tokens, private keys, passwords. Pure.

Every pattern begins at a boundary and has no two ways to read the same text, so the time is linear in its length.
Source of the prefixes: the services' own documentation.
"""

import re

_BEFORE = r"(?<![A-Za-z0-9_])"
_TOKENS = re.compile(
    _BEFORE
    + r"(?:"
    + r"|".join(
        (
            r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and compatible services
            r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
            r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",  # AWS
            r"gh[pousr]_[A-Za-z0-9]{20,}",  # GitHub
            r"github_pat_[A-Za-z0-9_]{20,}",
            r"glpat-[A-Za-z0-9_-]{16,}",  # GitLab
            r"xox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
            r"AIza[A-Za-z0-9_-]{30,}",  # Google
            r"hf_[A-Za-z0-9]{20,}",  # Hugging Face
            r"npm_[A-Za-z0-9]{30,}",
            r"pypi-[A-Za-z0-9_-]{30,}",
            r"LTAI[A-Za-z0-9]{12,}",  # Alibaba Cloud
            r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?",  # a JWT
        )
    )
    + r")"
)
_BEARER = re.compile(_BEFORE + r"(bearer|basic)( {1,4})(?=[^\s]{0,200}[0-9=])[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)
_URL = re.compile(r"(?<=://)([^/\s:@]{0,100}):[^/\s@]{1,200}(?=@)")
_NAMES = r"(?:password|passwd|passphrase|pwd|secret|api[_-]?key|access[_-]?key|(?:access|refresh|auth)[_-]?token)"
_ASSIGNED = re.compile(
    rf"((?:(?<![A-Za-z])|_){_NAMES}[\"']?\s{{0,3}}=\s{{0,3}}[\"']?)([^\s\"',;&]{{3,}})", re.IGNORECASE
)
# In prose any word may follow a colon: only one with a digit counts as a password.
_SAID = re.compile(
    rf"((?:(?<![A-Za-z]){_NAMES}[\"']?(?:\s{{0,3}}:\s{{0,3}}|\s{{1,3}}is\s{{1,3}})[\"']?)"
    r"|(?:密码|口令)\s{0,3}(?:[:：=]|是|为)\s{0,3})(?=[!-~]{0,100}[0-9])([!#-&(-+\--:<-~]{4,})",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")


def masked(text: str, mask: str) -> str:
    text = _without_private_keys(text, mask)
    text = _TOKENS.sub(mask, text)
    text = _BEARER.sub(rf"\1\2{mask}", text)
    if "://" in text:
        text = _URL.sub(rf"\1:{mask}", text)

    def named(found: re.Match[str]) -> str:
        return str(found[1]) + mask

    return _SAID.sub(named, _ASSIGNED.sub(named, text))


def _without_private_keys(text: str, mask: str) -> str:
    """A truncated key is masked up to the end of the text."""
    parts, at = [], 0
    while (begin := _BEGIN.search(text, at)) is not None:
        parts += [text[at : begin.start()], mask]
        end = _END.search(text, begin.end())
        at = len(text) if end is None else end.end()
    return "".join([*parts, text[at:]])
