"""Codes and wordings of vendors that always have the same meaning (AGT-9).

No vendor has a code for everything, and each uses its own words. All of these were seen. The meaning of general codes
and statuses is in `vendor_errors.py`.

**Images and documents** (AGT-4). They count only for requests with images or documents in them. The words were seen in
vendors' documentation, in their servers' code, and in reports of their users.
"""

import re
from collections.abc import Mapping

from turnkeeper.activities.providers.protocol import AttachmentProblem, AttachmentRefusal, ErrorKind
from turnkeeper.activities.providers.provider import ErrorWords

IMAGE_CODES = frozenset(
    {
        "invalid_image",
        "invalid_image_format",
        "invalid_base64_image",
        "invalid_image_url",
        "image_too_large",
        "image_too_small",
        "image_parse_error",
        "invalid_image_mode",
        "image_file_too_large",
        "unsupported_image_media_type",
        "empty_image_file",
        "failed_to_download_image",
        "image_file_not_found",
    }
)
"""OpenAI's codes for an image that can't be used."""


def words(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


OF_THE_ACCOUNT = frozenset({"data_residency_mismatch", "unsupported_country_region_territory"})
"""Codes of bad requests that no change of the request would help."""

NOT_IN_THIS_COUNTRY = words(
    r"\b(?:location|country|region|territory) (?:is )?not supported|not available in your (?:country|region)"
)
"""Words of the same."""

MEANINGS: dict[ErrorKind, ErrorWords] = {
    "quota": (
        frozenset(
            {
                "insufficient_quota",
                "billing_hard_limit_reached",
                "billing_not_active",
                "billing_error",
                "insufficient_balance",
                "enforced_spend_limit_reached",
                "contract_spend_limit_reached",
                "linked_organization_spend_limit_reached",
                "linked_organization_billing_unavailable",
                "exceeded_current_quota_error",  # Moonshot
                "arrearage",  # DashScope
                "1113",  # Zhipu
                "1309",  # z.ai, as the next
                "1310",
                "budget_exceeded",  # LiteLLM
            }
        ),
        words(
            r"credit balance is too low|exceeded your current quota|insufficient (?:credits?|balance|funds)",
            r"(?:spend|usage|billing) limits? (?:has been |was )?reached",
            r"reached your (?:\w+ ){0,3}(?:usage|spending|spend) limits?",  # Anthropic, Ollama
            r"account is not active, please check your billing",
            r"account .{0,80}is suspended.{0,60}(?:plan|billing|spending|invoice|pay|balance)",  # Moonshot, Fireworks
            r"account is in good standing|\bin arrears\b|余额不足|欠费",
            r"exceeded your monthly included credits|free tier of the model has been exhausted",
            r"used all (?:available|(?:of )?your) credits|(?:not|n't) have (?:any|enough) credits",  # xAI
            r"\bkey limit exceeded|can only afford",  # OpenRouter
            r"budget has been exceeded|exceeded ?budget\b|\bover budget\b",  # LiteLLM
            r"\b(?:plan|package|subscription) (?:has |is )?expired|(?:weekly|monthly)\b.{0,20} limit exhausted",  # z.ai
        ),
    ),
    "stale_reasoning": (
        frozenset({"invalid_encrypted_content"}),
        words(
            r"bound to a different conversation|expected `?thinking`? or `?redacted_thinking`?, but found",
            r"`?(?:redacted_)?thinking`?.{0,80}blocks?.{0,80}cannot be modified",
            r"invalid `?signature`? in `?thinking`?",
            r"encrypted content .{0,120}could not be (?:verified|decrypted)",
            r"of type 'reasoning' was provided without its required following item",
            r"without its required 'reasoning' item",
            r"item with id '\w+' not found",
            r"reasoning input items can only be provided to",
            # Gemini
            r"missing a `?thought_?signature|(?:corrupted|invalid) thought[_ ]?signature",
            r"thought[_ ]?signature is (?:not valid|invalid)",
        ),
    ),
    "context_too_long": (
        frozenset(
            {
                "context_length_exceeded",
                "exceed_context_size_error",
                "request_too_large",
                "request_body_too_large_after_decoding",
                "model_max_prompt_tokens_exceeded",  # Copilot
                "1261",  # Zhipu, z.ai
                "tokens_limit_reached",  # GitHub Models
            }
        ),
        words(
            # Anthropic; its proxies
            r"prompt is too long|input is too long|exceed(?:s|ed)? context limit",
            r"request exceeds the maximum (?:allowed )?size|extra usage is required for long context",
            # OpenAI, vLLM, Groq, OpenRouter, xAI, Mistral: "maximum context length", "maximum prompt length"
            r"maximum (?:context|prompt|model) length|exceeds? (?:the )?context window|input tokens exceed",
            r"model's context length|reduce the length of the (?:messages|prompt)|request too large for",
            r"exceeds the maximum allowed input length",
            # llama.cpp and its Python server, Ollama, SGLang, LM Studio, DS4
            r"exceeds the available context size|context size has been exceeded|the configured context size is",
            r"exceeds? the (?:model's )?context length|exceed(?:s|ed)? max context length",
            r"loaded with context length of|greater than the context length|reached context length",
            r"does not fit in (?:the )?context length",
            # Gemini, TGI, Cohere
            r"input token count .{0,40}(?:exceeds|model only supports up to)",
            r"`inputs` tokens \+ `max_new_tokens` must be|`inputs` must have less than [\d,]+ tokens",
            r"too many tokens: (?:total (?:number of )?tokens (?!per\b)|size limit exceeded)",
            # Moonshot, MiniMax, DashScope, Zhipu, Copilot
            r"exceeded model token limit|context window exceeds limit|range of input length should be",
            r"prompt exceeds max(?:imum)? length|prompt ?超长|prompt token count of [\d,]+ exceeds the limit",
            # Bedrock, Cloudflare, Databricks
            r"expected maxlength: \d+, actual: \d+|exceeded this model context window",
            r"tokens in request more than max tokens allowed",
        ),
    ),
    "refusal": (
        frozenset(
            {
                "content_filter",
                "content_policy_violation",
                "image_content_policy_violation",
                "bio_policy",
                "cyber_policy",
                "misalignment_policy_violation",
                "invalid_prompt",
                "responsibleaipolicyviolation",  # Azure
                "data_inspection_failed",  # DashScope
                "datainspectionfailed",
                "1301",  # Zhipu
            }
        ),
        words(
            r"\b(?:input|prompt|request|content|message)s? (?:was|were|has been) flagged",
            r"flagged as potentially violating",
            r"content management policy|blocked by (?:the |our )?content filter|content exists risk",
            r"may contain inappropriate content|content violates (?:our |the )?usage guidelines",
            r"was rejected (?:because it was considered high risk|as a result of our safety system)",
            r"(?:input|output) new_sensitive|不安全或敏感内容",
        ),
    ),
    "auth": (
        frozenset({"invalid_api_key", "organization_on_hold"}),
        words(
            # Gemini, xAI and others, with status 400
            r"\bapi[ -]key (?:is |has )?(?:not valid|invalid|expired|incorrect|missing)",
            r"\b(?:incorrect|invalid|expired|missing) api[ -]key\b(?! (?:param|prop|field|schema|arg))",
        ),
    ),
    "not_found": (
        frozenset({"model_not_found"}),
        re.compile(r"^unexpected endpoint or method", re.IGNORECASE),  # LM Studio, with status 200
    ),
    "bad_request": (OF_THE_ACCOUNT | IMAGE_CODES, NOT_IN_THIS_COUNTRY),
}
"""The first match counts."""

TOO_LONG_IN_ANY_WORDS = re.compile(
    # Not of the answer's length, of rates, or of single fields.
    r"^(?![\s\S]*(?:\b(?:output|completion|new|generated) tokens|max_(?:\w+_)?tokens"
    r"|\bper[ -](?:second|minute|hour|day|month)|\brate\b|\btpm\b|\bimages?\b|\bdocuments?\b|\bpdf|\bfiles?\b"
    r"|\btools?\b|\bstring\b|\bschema|\bnames?\b|\bbatch\b|\bbudget|\bstop\b|\bmetadata\b))"
    r"(?=[\s\S]*(?:\btokens?\b|\bcontext\b|\bprompt|\binputs?\b|\bsequence\b|\bconversation|\bmessages\b|上下文|输入|token数))"
    r"(?=[\s\S]*(?:exceed|\bover(?:flow|\b)|too (?:long|large|many|big)|greater|larger|longer|more than|\babove"
    r"|\bmax(?:imum)?\b|\blimit|does(?:n't| not) fit|out of (?:context|range)|at most|less than|超过|超出|过长))"
    r"(?=[\s\S]*\d{3})",
    re.IGNORECASE,
)
"""A number, and a text or its tokens that are more: how servers whose words nobody has seen say that it is too long."""

MEANINGS_OF_NO_ACCESS: tuple[ErrorKind, ...] = ("quota", "refusal", "auth", "not_found", "bad_request")
"""Possible meanings of the statuses 401 and 403: a request that was denied access was not checked for anything else."""

GENERAL_KINDS: dict[str, ErrorKind] = {
    "overloaded_error": "overloaded",
    "engine_overloaded_error": "overloaded",
    "server_is_overloaded": "overloaded",
    "slow_down": "overloaded",
    "capacity_exceeded": "overloaded",  # Groq, with status 498
    "rate_limit_error": "rate_limited",
    "rate_limit_exceeded": "rate_limited",
    "rate_limit_reached_error": "rate_limited",
    "api_error": "provider_error",
    "server_error": "provider_error",
    "internal_server_error": "provider_error",
    "timeout_error": "timeout",
    "vector_store_timeout": "timeout",
    "authentication_error": "auth",
    "permission_error": "permission",
    "not_found_error": "not_found",
    "invalid_request_error": "bad_request",
}
"""Vendors' general error types."""

BOTCHED_CALLS = frozenset({"tool_use_failed", "output_parse_failed"})
"""Codes of a server that could not read its model's call (Groq). A retry may succeed."""

PASSING = words(
    r"^\W{0,9}(?:an? )?(?:internal |unknown |unexpected )?(?:server )?error(?: encountered| occurred)?\W{0,9}$",
    r"\b(?:please|again|can) (?:re)?try\b|\b(?:try|retry)(?:ing)? (?:again|your|the request|later)|\btemporar",
    r"server (?:had|encountered) an? \w* ?error|something went wrong|an? (?:\w+ )?error (?:has )?occurred",
    r"\b(?:unavailable|busy|capacity|connection|upstream|network)\b|overloaded|time[ds]?[ -]?out|bad gateway",
    r"provider returned error\W*$|\bis (?:still )?(?:loading|starting|warming)",
)
"""Words of an error that passes: of the server, not of the request."""

_NO = r"(?:not|n't|no longer) (?:\w+ )?(?:support(?:ed|s)?|accept(?:ed|s)?|allow(?:ed|s)?|enabled|available|handle)"

_OF_FILES = r"(?: (?:inputs?|content|data|uploads?|parts?|blocks?|types?|attachments?))"

PROBLEMS: dict[AttachmentProblem, ErrorWords] = {
    "too_large": (
        frozenset({"request_too_large", "request_body_too_large_after_decoding"}),
        words(
            r"request exceeds the maximum (?:allowed )?size|request (?:entity|body) (?:is )?too large",
            r"payload (?:is )?too large|total (?:image|file|media) (?:size|payload)",
        ),
    ),
    "too_many": (
        frozenset({"too_many_images"}),
        words(
            r"too many (?:images|documents|files|pdfs)|at most [1-9]\d* (?:image|video|audio|document|file)",
            r"maximum (?:number )?of (?:\d+ )?(?:images|documents|files)",
        ),
    ),
    "unreadable": (
        frozenset({*IMAGE_CODES, "sanitizer_server_error", "invalid_file", "unsupported_file"}),
        words(
            # Anthropic, and Claude elsewhere
            r"could not (?:process|read|decode|parse) (?:the |this |an )?(?:image|pdf|document|file)",
            r"(?:image|pdf|document) exceeds|image dimensions exceed|many-image requests",
            r"image was specified using the|image does not match the provided media type",
            r"(?:image|document)\.source\.|maximum of \d+ (?:pdf )?pages|too many pages",
            r"pdf (?:specified )?(?:was not|is not|isn't) valid|password[- ]protected|invalid pdf|pdf .{0,40}encrypted",
            r"unable to download the (?:file|image)|only https urls are supported",
            r"all content must be type `?text`? if `?is_error",
            # OpenAI
            r"uploaded an unsupported image|not represent a valid image|invalid base64|image data .{0,40}not valid",
            r"(?:error|timeout|failed) (?:while |to )?download(?:ing)? (?:the )?(?:image|file|pdf|'?https?:)",
            r"failed to (?:fetch|load) (?:the )?image",
            r"invalid mime type|unsupported (?:image|file|mime)[ _](?:type|format|media)|invalid file data",
            r"invalid (?:image|data) url|invalid 'input.{0,80}(?:image_url|file_data)'",
            # vLLM, llama.cpp, Ollama, LM Studio, Gemini, Mistral
            r"cannot identify image file|image file is truncated",
            r"failed to (?:decode|process|parse|open) (?:the )?(?:image|file|input image)|invalid image|illegal base64",
            r"image: unknown format|unable to process input image|provided image is not valid",
            r"unexpected role '?user'? after role '?tool",
        ),
    ),
    "no_images": (
        frozenset(),
        words(
            r"image_url is only supported|unknown variant `?(?:image_url|image|input_image)|unknown part type: image",
            r"at most 0 image",
            rf"(?<![\w.-])image(?:s|_url| inputs?| content| understanding)?['\"`]?(?: \w+){{0,3}} (?:is |are )?{_NO}",
            rf"{_NO} (?:\w+ ){{0,2}}`?(?:image|vision|multi-?modal)",
            r"(?:found|model) that support(?:s)? image|missing data required for image|not a (?:multi-?modal|vision)",
            r"(?:is|are) (?:a )?text[- ]only|not configured with a mmproj|image input modality is not enabled",
            r"does not have vision|invalid content type\W+image",
        ),
    ),
    "no_pdfs": (
        frozenset(),
        words(
            r"unknown variant `?(?:file|input_file|document)|unknown part type: file|file is only supported",
            rf"(?:pdf|file|document)(?:s|_data)?['\"`]?{_OF_FILES}{{0,2}} (?:is |are )?{_NO}",
            rf"{_NO} (?:\w+ ){{0,2}}`?(?:pdf|file|document)(?![ _-]?search)",
            r"(?:found|model) that support(?:s)? (?:pdf|file)|invalid content type\W+file",
        ),
    ),
    "no_media": (
        frozenset(),
        words(
            # Servers whose content is nothing but text: Groq, DeepSeek, Ollama, TGI
            r"content(?:'|\")? (?:must|should) be (?:a )?(?:valid )?string|invalid type: sequence, expected a string",
            r"did not match any variant of untagged enum ChatCompletionRequestContent|invalid message format",
            r"unknown (?:content )?(?:part|block) type|content\W+input should be a valid string",
            r"str type expected",
        ),
    ),
}
"""The first match counts."""

TOO_LARGE_STATUS = 413

_STATUSES = frozenset({400, TOO_LARGE_STATUS, 415, 422})
"""What a vendor refuses of a request has one of these, or comes within a stream: then the status is below 400."""

_STATUSES_OF_LOCAL_SERVERS = frozenset({500, 501})
"""llama.cpp and Ollama answer with these, but so does a server that is broken: they count with a kind's name."""

_KIND = re.compile(r"image|pdf|document|multi-?modal|vision|mmproj", re.IGNORECASE)

_NO_ENDPOINT = re.compile(r"no endpoints found", re.IGNORECASE)
"""OpenRouter's words, with status 404."""

_LIMIT = re.compile(r"(?:at most|max(?:imum)?(?: number)?(?: is| of|:)?|>|up to) (\d{1,4})\b(?! ?[km]b)", re.IGNORECASE)

_PLACE = re.compile(r"\b(?:messages|input)(?:\.\d+|\[\d+\])(?:[.\[]\w+\]?)*")


def attachment_refusal(
    status: int,
    codes: frozenset[str],
    message: str,
    *,
    parameter: str = "",
    more_words: Mapping[AttachmentProblem, ErrorWords] | None = None,
) -> AttachmentRefusal | None:
    """Return what a vendor refuses about a request's images or documents; `None` if the error is about something else.

    `parameter` is the field that the vendor blames. `more_words` are read before `PROBLEMS`.

    >>> attachment_refusal(400, frozenset(), "messages.0.content.1.image.source.base64: Could not process image")
    AttachmentRefusal(problem='unreadable', limit=None, place='messages.0.content.1.image.source.base64')
    >>> attachment_refusal(400, frozenset(), "At most 2 image(s) may be provided in one request.").limit
    2
    >>> attachment_refusal(400, frozenset(), "prompt is too long: 215000 tokens > 200000 maximum")
    """
    if status in _STATUSES_OF_LOCAL_SERVERS:
        may_refuse = bool(_KIND.search(message))
    else:
        may_refuse = status < 400 or status in _STATUSES or (status == 404 and bool(_NO_ENDPOINT.search(message)))
    if not may_refuse:
        return None
    problem: AttachmentProblem | None = "too_large" if status == TOO_LARGE_STATUS else None
    for known_problem, (known_codes, wording) in (*(more_words or {}).items(), *PROBLEMS.items()):
        if codes & known_codes or wording.search(message):
            problem = known_problem
            break
    if problem is None:
        return None
    place = _PLACE.search(message) or _PLACE.search(parameter)
    limit = _LIMIT.search(message) if problem == "too_many" else None
    return AttachmentRefusal(problem, limit=int(limit[1]) if limit else None, place=place[0] if place else "")
