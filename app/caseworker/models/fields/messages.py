"""Fields of Anthropic's Messages API, stable and beta."""

from typing import Final

from caseworker.models.fields.provider_options import (
    CACHE_MARK,
    NO_LIMIT,
    OPTIONS,
    OTHER_LIMIT,
    OTHER_MODEL,
    OVERRIDES,
)
from caseworker.models.fields.table import Fields, FieldSection, Table, Use

_BODY = FieldSection(
    title="The body",
    at=("",),
    rows=(
        Fields(Use.FREE, "model stream tool_choice.** stop_sequences output_config.effort"),
        Fields(Use.OUTPUT_LIMIT, "max_tokens", "0 only fills the cache of the prompt"),
        Fields(Use.PRICED, "max_completion_tokens max_output_tokens", OTHER_LIMIT),
        Fields(Use.CHOICES, "n best_of"),
        Fields(Use.TEXT, "system output_config.format.** output_format.**"),
        Fields(Use.FREE, "output_config.task_budget.{type,total,remaining}"),
        Fields(Use.FREE, "thinking.block_binding.prefix_mismatch_behavior"),
        Fields(Use.FREE, "speed", values=("standard",)),
        Fields(Use.PRICED, "speed", "it has a price of its own", values=("fast",)),
        Fields(Use.PRICED, "inference_geo", "a region has a price of its own", unless=("global",)),
        Fields(Use.COMPACTION, "compaction context_management.edits[]<compact>"),
        Fields(
            Use.TEXT, "compaction.instructions context_management.edits[]<compact>.instructions"
        ),
        Fields(
            Use.FREE,
            "compaction.type context_management.edits[]<compact>.pause_after_compaction"
            " context_management.edits[]<compact>.trigger.**"
            " context_management.edits[]<clear_tool_uses>.{clear_at_least,clear_tool_inputs"
            ",exclude_tools,keep,trigger}.**"
            " context_management.edits[]<clear_thinking>.keep.**",
        ),
        Fields(Use.FREE, "diagnostics.previous_message_id", "it only explains a miss of the cache"),
        Fields(Use.FREE, "thread<create>", "the provider stores the conversation"),
        Fields(Use.REFERENCE, "thread<continue>.previous_message_id"),
        Fields(Use.FREE, "fallback_credit_token.**", "it lowers the price of a repetition"),
        Fields(
            Use.PRICED,
            "billing_policy",
            "another organization would be billed",
            unless=({"bill_to": "self"},),
        ),
        Fields(Use.FREE, "billing_policy.{type,bill_to}"),
        Fields(
            Use.PRICED,
            "mcp_servers",
            "the provider would call tools, without a limit of their uses",
        ),
        Fields(
            Use.FREE,
            "mcp_servers[].{name,type,url,authorization_token}"
            " mcp_servers[].tool_configuration.{allowed_tools,enabled}",
        ),
        Fields(Use.REFERENCE, "container.skills[].skill_id"),
        Fields(Use.FREE, "container.skills[].{type,version}"),
        Fields(
            Use.FREE,
            "anthropic_beta anthropic_version betas user_profile_id workspace_id",
            "headers of the API; Bedrock and Vertex read two of them in the body",
        ),
    ),
)

_EXTRA = FieldSection(
    title="`extra_body`",
    at=("extra_body",),
    rows=(
        Fields(
            Use.PRICED,
            "model messages system stream tools tool_choice n best_of max_tokens"
            " max_completion_tokens max_output_tokens mcp_servers",
            OVERRIDES,
        ),
    ),
)

_MESSAGES = FieldSection(
    title="Messages",
    at=("messages[]",),
    rows=(
        Fields(Use.FREE, "role clear_at output_config.effort id"),
        Fields(Use.TEXT, "content"),
    ),
)

_CONTENT = FieldSection(
    title="Blocks",
    at=("messages[].content[]", "system[]"),
    rows=(
        *CACHE_MARK,
        Fields(
            Use.TEXT,
            "<text>.text <text>.citations.** <thinking>.{thinking,signature}"
            " <redacted_thinking>.data <tool_use|server_tool_use|mcp_tool_use>.{name,server_name"
            ",toolset_name} <tool_use|server_tool_use|mcp_tool_use>.input.**"
            " <tool_result|mcp_tool_result>.{content,toolset_name}"
            " <document>.{title,context} <search_result>.{source,title}",
        ),
        Fields(
            Use.FREE,
            "<tool_use|server_tool_use|mcp_tool_use>.id"
            " <tool_result|mcp_tool_result|web_search_tool_result|web_fetch_tool_result"
            "|code_execution_tool_result|bash_code_execution_tool_result"
            "|text_editor_code_execution_tool_result|tool_search_tool_result"
            "|advisor_tool_result>.tool_use_id <tool_result|mcp_tool_result>.is_error"
            " <tool_use|server_tool_use|web_search_tool_result|web_fetch_tool_result>.caller.**"
            " <document|search_result>.citations.enabled <fallback>.{from,to,trigger}.**",
        ),
        Fields(
            Use.TEXT,
            "<web_search_tool_result|tool_search_tool_result|advisor_tool_result"
            "|text_editor_code_execution_tool_result>.content.**"
            " <web_fetch_tool_result>.content<web_fetch_tool_result_error>.error_code"
            " <web_fetch_tool_result>.content<web_fetch_result>.{url,retrieved_at}"
            " <code_execution_tool_result>.content<code_execution_tool_result_error>.error_code"
            " <bash_code_execution_tool_result>.content<bash_code_execution_tool_result_error>"
            ".error_code",
        ),
        Fields(
            Use.TEXT,
            "<code_execution_tool_result|bash_code_execution_tool_result>"
            ".content<code_execution_result|encrypted_code_execution_result"
            "|bash_code_execution_result>.{stdout,stderr,encrypted_stdout,return_code}",
        ),
        Fields(
            Use.REFERENCE,
            "<code_execution_tool_result|bash_code_execution_tool_result>"
            ".content<code_execution_result|encrypted_code_execution_result"
            "|bash_code_execution_result>.content[]<code_execution_output"
            "|bash_code_execution_output>.file_id <container_upload>.file_id",
        ),
        Fields(Use.TEXT, "<compaction>.{content,encrypted_content,signature}"),
        Fields(Use.TEXT, "<mcp_tool_listing>.mcp_server_name <mcp_tool_listing>.tools.**"),
        Fields(Use.CACHE, "<compaction>.tool_changes[].cache_control"),
        Fields(Use.FREE, "<compaction>.tool_changes[].cache_control.{type,ttl}"),
    ),
)

_CHANGES = FieldSection(
    title="Changes of the tools",
    at=(
        "messages[].content[]",
        "system[]",
        "messages[].content[]<compaction>.tool_changes[]",
        "system[]<compaction>.tool_changes[]",
    ),
    rows=(
        Fields(
            Use.TEXT,
            "<tool_addition|tool_removal>.tool<tool_reference|mcp_tool_reference"
            "|mcp_toolset_reference>.{name,server_name}",
        ),
        Fields(
            Use.PRICED,
            "<tool_addition>.tool<tool_definition>.definition",
            "the gateway reads tools in the field tools",
        ),
    ),
)

_TEXTS = FieldSection(
    title="Texts within a block",
    at=(
        "messages[].content[]<mcp_tool_result|search_result>.content[]",
        "messages[].content[]<tool_result>.content[]<search_result>.content[]",
    ),
    rows=(Fields(Use.TEXT, "<text>.text <text>.citations.**"), *CACHE_MARK),
)

_SOURCES = FieldSection(
    title="Images and documents",
    at=(
        "messages[].content[]",
        "messages[].content[]<tool_result>.content[]",
        "messages[].content[]<document>.source<content>.content[]",
        "messages[].content[]<tool_result>.content[]<document>.source<content>.content[]",
        "messages[].content[]<web_fetch_tool_result>.content<web_fetch_result>.content",
        "messages[].content[]<web_fetch_tool_result>.content<web_fetch_result>.content<document>"
        ".source<content>.content[]",
    ),
    rows=(
        Fields(Use.IMAGE, "<image>.source<base64>.data <image>.source<url>.url"),
        Fields(
            Use.FREE, "<image>.source<base64>.media_type <image>.transformations.oversized_image"
        ),
        Fields(Use.DOCUMENT, "<document>.source<base64>.data <document>.source<url>.url"),
        Fields(Use.FREE, "<document>.source<base64|text>.media_type"),
        Fields(Use.TEXT, "<document>.source<text>.data <document>.source<content>.content"),
        Fields(Use.REFERENCE, "<image|document>.source<file>.file_id"),
    ),
)

_RESULTS = FieldSection(
    title="Blocks within other blocks",
    at=_SOURCES.at[1:],
    rows=(
        Fields(
            Use.TEXT,
            "<text>.text <text>.citations.** <document>.{title,context}"
            " <search_result>.{source,title} <tool_reference>.tool_name"
            " <browser_state>.{tabs,state_changes}.**",
        ),
        Fields(Use.FREE, "<document|search_result>.citations.enabled"),
        *CACHE_MARK,
    ),
)

_TOOLS = FieldSection(
    title="Tools",
    at=("tools[]",),
    rows=(
        *CACHE_MARK,
        Fields(Use.FREE, "allowed_callers defer_loading strict eager_input_streaming"),
        Fields(
            Use.TEXT,
            "<custom|>.{name,description} <custom|>.{input_schema,input_examples}.**"
            " <bash|text_editor|computer|memory>.name"
            " <bash|text_editor|computer|memory>.input_examples.**",
        ),
        Fields(
            Use.FREE,
            "<text_editor>.max_characters <computer>.{display_height_px,display_width_px"
            ",display_number,enable_zoom} <browser_toolset|computer_toolset>.configs.**",
        ),
        Fields(
            Use.PRICED,
            "<tool_search_tool_bm25|tool_search_tool_regex>",
            "each search of the provider reads the prompt again, without a limit of searches",
        ),
        Fields(Use.FREE, "<tool_search_tool_bm25|tool_search_tool_regex>.name"),
        Fields(Use.PROVIDER_TOOL, "<web_search|web_fetch>"),
        Fields(
            Use.FREE,
            "<web_search|web_fetch>.{name,max_uses,allowed_domains,blocked_domains"
            ",response_inclusion} <web_search>.user_location.** <web_fetch>.citations.enabled"
            " <web_fetch>.{max_content_tokens,use_cache} <web_fetch>.url_sources.**",
        ),
        Fields(Use.PRICED, "<code_execution|mcp_toolset|mcp|url_context>", NO_LIMIT),
        Fields(Use.PRICED, "<advisor>", OTHER_MODEL),
        Fields(
            Use.FREE,
            "<code_execution>.name <mcp_toolset>.mcp_server_name"
            " <mcp_toolset>.{configs,default_config,tools}.**"
            " <advisor>.{name,model,max_tokens,max_uses} <advisor>.caching.**",
        ),
    ),
)

MESSAGES: Final = Table(
    "messages",
    _BODY,
    OPTIONS,
    _EXTRA,
    _MESSAGES,
    _CONTENT,
    _SOURCES,
    _RESULTS,
    _TEXTS,
    _CHANGES,
    _TOOLS,
)
