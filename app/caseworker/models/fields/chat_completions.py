"""Fields of OpenAI's chat completions, and what other providers added to them."""

from typing import Final

from caseworker.models.fields.provider_options import (
    CACHE_MARK,
    NO_LIMIT,
    OPTIONS,
    OTHER_LIMIT,
    OVERRIDES,
    PIXELS,
)
from caseworker.models.fields.table import Fields, FieldSection, Table, Use

_BODY = FieldSection(
    title="The body",
    at=("",),
    rows=(
        Fields(Use.FREE, "model stream stream_options.{include_usage,include_obfuscation}"),
        Fields(Use.FREE, "stream_options.continuous_usage_stats tool_choice.** function_call.**"),
        Fields(Use.CHOICES, "n best_of"),
        Fields(Use.OUTPUT_LIMIT, "max_completion_tokens max_tokens"),
        Fields(
            Use.PRICED,
            "max_completion_tokens max_tokens",
            "some servers read 0 as no limit",
            values=(0,),
        ),
        Fields(Use.PRICED, "max_output_tokens", OTHER_LIMIT),
        Fields(Use.TEXT, "functions[].{name,description} functions[].parameters.**"),
    ),
)

_EXTRA = FieldSection(
    title="`extra_body`",
    at=("extra_body",),
    rows=(
        Fields(
            Use.PRICED,
            "model messages stream stream_options tools tool_choice functions function_call n"
            " best_of max_completion_tokens max_tokens",
            OVERRIDES,
        ),
    ),
)

_MESSAGES = FieldSection(
    title="Messages",
    at=("messages[]",),
    rows=(
        Fields(
            Use.TEXT,
            "content refusal reasoning reasoning_content name tool_call_id tool_name"
            " function_call.{name,arguments} reasoning_details.** annotations.**"
            " thinking_blocks.** provider_specific_fields.**",
        ),
        Fields(Use.TEXT, "reasoning_items.** parsed.** thinking"),
        Fields(
            Use.FREE,
            "role prefix partial id index status tool_calls[]<function|custom|>.{id,index}"
            " configuration_update.reasoning.effort",
        ),
        Fields(
            Use.TEXT,
            "tool_calls[]<function|>.function.name tool_calls[]<function|>.function.arguments.**"
            " tool_calls[]<function|>.function.{parsed_arguments,strict}.**"
            " tool_calls[]<custom>.custom.{name,input}",
        ),
        Fields(
            Use.FREE,
            "tool_calls[]<function|>.extra_content.** extra_content.**"
            " tool_calls[]<function|>.provider_specific_fields.**",
            "signatures of Gemini's thoughts",
        ),
        Fields(Use.REFERENCE, "audio.id"),
        Fields(Use.TEXT, "audio.{transcript,expires_at}"),
        Fields(Use.AUDIO, "audio.data"),
        Fields(Use.IMAGE, "images[].url images[].image_url.url", "llama.cpp, OpenRouter"),
        Fields(Use.FREE, "images[].{index,type} images[].image_url.detail"),
        *CACHE_MARK,
    ),
)

_CONTENT = FieldSection(
    title="Parts of a message",
    at=("messages[].content[]",),
    rows=(
        Fields(
            Use.TEXT,
            "<text>.text <refusal>.refusal <thinking>.{thinking,signature}"
            " <thinking>.thinking[]<text>.text <redacted_thinking>.data"
            " <document>.document.data.** <reference>.reference_ids",
        ),
        Fields(Use.FREE, "<thinking>.closed <document>.document.id"),
        Fields(Use.IMAGE, "<image_url>.image_url <image_url>.image_url.url"),
        Fields(
            Use.FREE,
            "<image_url>.image_url.{detail,format,media_type} <image_url>.uuid",
        ),
        Fields(
            Use.PRICED,
            "<image_url>.{min_pixels,max_pixels} <image_url>.image_url.{min_pixels,max_pixels}",
            PIXELS,
        ),
        Fields(Use.AUDIO, "<input_audio>.input_audio <input_audio>.input_audio.{data,url}"),
        Fields(Use.AUDIO, "<audio_url>.audio_url <audio_url>.audio_url.url"),
        Fields(Use.FREE, "<input_audio>.input_audio.format"),
        Fields(Use.DOCUMENT, "<file>.file.{file_data,file_url}"),
        Fields(Use.DOCUMENT, "<document_url>.document_url <document_url>.document_url.url"),
        Fields(Use.REFERENCE, "<file>.file.file_id <file>.file_id"),
        Fields(
            Use.FREE,
            "<file>.file.{filename,format} <document_url>.document_name",
        ),
        Fields(
            Use.PRICED,
            "<video|video_url|input_video>",
            "no rule bounds the tokens of a video",
        ),
        Fields(Use.FREE, "<text>.{id,citations,annotations}.**"),
        *CACHE_MARK,
    ),
)

_TOOLS = FieldSection(
    title="Tools",
    at=("tools[]",),
    rows=(
        Fields(
            Use.TEXT,
            "<function|>.function.{name,description} <function|>.function.parameters.**"
            " <custom>.custom.{name,description} <custom>.custom.format.**",
        ),
        Fields(
            Use.FREE,
            "<function|>.function.{strict,defer_loading,eager_input_streaming}"
            " <function|>.{strict,defer_loading,allowed_callers}",
        ),
        Fields(Use.CACHE, "<function|>.function.cache_control"),
        Fields(Use.FREE, "<function|>.function.cache_control.{type,ttl}"),
        Fields(
            Use.PRICED,
            "<web_search|web_search_preview|web_fetch|code_interpreter|code_execution|live_search"
            "|x_search|collections_search|browser_search|browser_automation|file_search|mcp"
            "|image_generation|google_search|googleSearch|url_context|retrieval|shell"
            "|computer_use_preview|openrouter:web_search|openrouter:web_fetch"
            "|openrouter:image_generation>",
            NO_LIMIT,
        ),
        Fields(
            Use.PRICED,
            "<|function>.{googleSearch,google_search,googleSearchRetrieval,google_search_retrieval"
            ",codeExecution,code_execution,urlContext,url_context,googleMaps,google_maps"
            ",fileSearch,file_search,enterpriseWebSearch,computerUse}",
            NO_LIMIT,
        ),
        Fields(Use.REFERENCE, "{vector_store_ids,file_ids,container,container_id}"),
        *CACHE_MARK,
    ),
)

CHAT_COMPLETIONS: Final = Table(
    "chat_completions", _BODY, OPTIONS, _EXTRA, _MESSAGES, _CONTENT, _TOOLS
)
