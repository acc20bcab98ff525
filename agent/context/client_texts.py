"""Finds texts that chat programs put into a person's message: retrieved documents, files, the state of an editor.
Pure."""

import re
from collections.abc import Collection, Iterator

Range = tuple[int, int]

# The text that a template puts before and after the person's question. Patterns match up to the last end mark, because
# a retrieved document may contain the mark too.
_TEMPLATES = tuple(
    re.compile(pattern, re.DOTALL | re.MULTILINE)
    for pattern in (
        # In order: Open WebUI (RAG_TEMPLATE, an older template, tools), LobeChat, AnythingLLM, LlamaIndex, LangChain
        r"\A\s*#+ Task:\s+Respond to the user query using the provided context.*</context>",
        r"\A\s*Use the following context as your learned knowledge, inside <context></context> XML tags\.?"
        r"(?:.*^[ \t]*Query:|.*answer according to the language of the user['’]s question\.?|.*</context>)",
        r"^Tool `[^`\n]+` Output:.*\Z",
        r"<!-- SYSTEM CONTEXT \(NOT PART OF USER QUERY\) -->.*<!-- END SYSTEM CONTEXT -->",
        r"^(?:Context:\s*)?\[CONTEXT \d+\].*\[END CONTEXT \d+\]",
        r"\A\s*Context information is below\..*^[ \t]*Query:|^[ \t]*Answer:\s*\Z",
        r"\A\s*Use the following pieces of (?:retrieved )?context to answer.*^[ \t]*Question:|^Helpful Answer:\s*\Z",
    )
)
# Names of elements in lower case, without hyphens and underscores.
_OF_CLIENTS = re.compile(
    r"additionaldata|attachedfiles?|attachments?|chathistory|command(?:message|name)|context|conversationhistory|data"
    r"|currentfile|documents?|documentcontent|(?:editor|environment|retrieved)context|environmentdetails|files?"
    r"|file(?:contents?|info)|filesinfo|(?:folder|url)content|functionresults|localcommandstdout|memor(?:y|ies)"
    r"|openandrecentlyviewedfiles|projectlayout|reminderinstructions|searchresults|sources?|summary|system"
    r"|systemreminder|terminaloutput|thinking|toolresult|userin(?:fo|structions)|webpage|workspaceinfo"
)
_OF_THE_PERSON = re.compile(
    r"answer|feedback|question|query|request|task|user(?:input|message|prompt|query|question|request)?"
)
_FORMATTING = re.compile(
    r"[abipsu]|abbr|blockquote|body|br|center|code|d[dlt]|del|details|div|em|font|h[1-6r]|html|ins|kbd|li|mark|[ou]l|pre"
    r"|small|span|strong|su[bp]|table|t[dhrt]|tbody|thead"
)
_TAG = re.compile(r"(?P<indent>(?:^|(?<=>))[ \t]*)?<(?P<close>/)?(?P<name>[A-Za-z][\w:.-]*)(?:\s[^<>]*)?(?<!/)>", re.M)


def additions(text: str) -> list[Range]:
    """Returns the ranges that chat programs are known to add: templates, elements, and the tags around a person's
    words."""
    ranges = [match.span() for pattern in _TEMPLATES for match in pattern.finditer(text)]
    return [*ranges, *_elements(hidden(text, ranges, " "), _OF_CLIENTS)]


def blocks(text: str) -> list[Range]:
    """Returns the ranges of closed elements that begin a line or follow a tag, except elements for a person's words and
    text formatting."""
    return list(_elements(text, None))


def without_additions(text: str) -> str:
    """Returns the person's own words, or the whole text if a chat program added nothing or wrote all of it."""
    return hidden(text, additions(text), " ").strip() or text


def hidden(text: str, ranges: Collection[Range], by: str) -> str:
    """Returns the text with every character of the ranges replaced, except line breaks."""
    if not ranges:
        return text
    kept = list(text)
    for start, end in ranges:
        kept[start:end] = [char if char == "\n" else by for char in text[start:end]]
    return "".join(kept)


def _elements(text: str, names: re.Pattern[str] | None) -> Iterator[Range]:
    """Yields the ranges of elements.

    names: pattern of the elements to yield, anywhere in a line; one that begins a line or follows a tag, and is not
    closed, extends to the end of the text. The tags around a person's words are yielded too, without these words. None:
    yields every closed element that begins a line or follows a tag, except elements for a person's words and text
    formatting.
    """
    end = 0
    for tag in _TAG.finditer(text):
        name = re.sub("[-_]", "", tag["name"]).lower()
        if tag.start() < end or _FORMATTING.fullmatch(name):
            continue
        if _OF_THE_PERSON.fullmatch(name):
            if names is not None:
                yield tag.span()
            continue
        is_block = tag["indent"] is not None
        if tag["close"] or not (names.fullmatch(name) if names is not None else is_block):
            continue
        closing = f"</{tag['name']}>"
        at = text.find(closing, tag.end())
        if at >= 0 or (names is not None and is_block):
            end = at + len(closing) if at >= 0 else len(text)
            yield tag.start(), end
