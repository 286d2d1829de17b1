"""Fields of OpenAI's Responses API, stable and beta."""

from collections.abc import Mapping
from typing import Any, Final

from caseworker.models.fields.provider_options import (
    CACHE_MARK,
    DETACHED,
    OPTIONS,
    OTHER_LIMIT,
    OVERRIDES,
)
from caseworker.models.fields.table import Fields, FieldSection, Table, Use

_TOOLS_AT: Final = ("tools[]", "input[]<additional_tools|tool_search_output>.tools[]")
_HOSTED: Final = "code_interpreter|file_search|image_generation|mcp|programmatic_tool_calling"


def _type_of_item(item: Mapping[str, Any]) -> str:
    return "message" if "role" in item else "item_reference"


_BODY = FieldSection(
    title="The body",
    at=("",),
    rows=(
        Fields(Use.FREE, "model stream stream_options.include_obfuscation tool_choice.**"),
        Fields(Use.TEXT, "input instructions"),
        Fields(Use.OUTPUT_LIMIT, "max_output_tokens"),
        Fields(Use.PRICED, "max_output_tokens", "some servers read 0 as no limit", values=(0,)),
        Fields(Use.PRICED, "max_tokens max_completion_tokens", OTHER_LIMIT),
        Fields(Use.CHOICES, "n best_of"),
        Fields(Use.FREE, "max_tool_calls", "a limit of uses; the gateway lowers it"),
        Fields(
            Use.FREE,
            "access_programs.cyber client_metadata.** image.context_compression include"
            " text.verbosity text.format.type truncation",
        ),
        Fields(Use.TEXT, "text.format.{name,description,strict} text.format.schema.**"),
        Fields(Use.FREE, "reasoning.{context,generate_summary}"),
        Fields(Use.FREE, "reasoning.mode", values=("standard",)),
        Fields(Use.PRICED, "reasoning.mode", "pro reads the prompt several times", values=("pro",)),
        Fields(Use.COMPACTION, "context_management[]<compaction>"),
        Fields(Use.FREE, "context_management[]<compaction>.compact_threshold"),
        Fields(Use.FREE, "prompt_cache_options.prewarm"),
        Fields(Use.REFERENCE, "prompt_cache_options.comparison_response_id"),
        Fields(
            Use.PRICED,
            "multi_agent",
            "the provider would start agents that call models",
            unless=({"enabled": False},),
        ),
        Fields(Use.FREE, "multi_agent.{enabled,max_concurrent_subagents}"),
        Fields(Use.REFUSED, "background_options", DETACHED),
        Fields(Use.FREE, "betas", "a header of the API", values=("responses_multi_agent=v1",)),
    ),
)

_EXTRA = FieldSection(
    title="`extra_body`",
    at=("extra_body",),
    rows=(
        Fields(
            Use.PRICED,
            "model input instructions stream stream_options tools tool_choice n best_of"
            " max_output_tokens max_tokens max_completion_tokens max_tool_calls",
            OVERRIDES,
        ),
    ),
)

_ITEMS = FieldSection(
    title="Items",
    at=("input[]",),
    untyped=_type_of_item,
    rows=(
        Fields(Use.FREE, "status agent.agent_name caller.** created_by"),
        Fields(Use.TEXT, "internal_chat_message_metadata_passthrough.**"),
        Fields(
            Use.FREE,
            "<message|additional_tools|function_call|custom_tool_call|agent_message"
            "|configuration_update|compaction_trigger|function_call_output"
            "|custom_tool_call_output|computer_call_output|local_shell_call_output"
            "|shell_call_output|apply_patch_call_output|program_output|multi_agent_call_output"
            "|tool_search_output>.id",
            "items that the client writes whole",
        ),
        Fields(
            Use.REFERENCE,
            "<reasoning|compaction|compaction_summary|context_compaction>.id",
            "the provider completes them by their ID",
            unless_with="encrypted_content",
        ),
        Fields(
            Use.REFERENCE,
            "<item_reference|file_search_call|computer_call|web_search_call|tool_search_call"
            "|image_generation_call|code_interpreter_call|local_shell_call|shell_call"
            "|apply_patch_call|mcp_list_tools|mcp_approval_request|mcp_approval_response|mcp_call"
            "|program|multi_agent_call>.id",
            "the provider completes them by their ID",
        ),
        Fields(Use.REFERENCE, "<mcp_approval_response|mcp_call>.approval_request_id"),
        Fields(
            Use.TEXT,
            "<message|agent_message|reasoning>.content <message>.{role,phase}"
            " <agent_message>.{author,recipient} <additional_tools>.role",
        ),
        Fields(
            Use.TEXT,
            "<reasoning>.summary[]<summary_text>.text <reasoning>.content[]<reasoning_text>.text"
            " <reasoning|compaction|compaction_summary|context_compaction>.encrypted_content",
        ),
        Fields(
            Use.TEXT,
            "<function_call>.{name,namespace,async} <function_call>.arguments.**"
            " <custom_tool_call>.{name,namespace,input,async}"
            " <function_call|custom_tool_call>.parsed_arguments.**",
        ),
        Fields(
            Use.FREE,
            "<function_call|function_call_output|custom_tool_call|custom_tool_call_output"
            "|computer_call|computer_call_output|tool_search_call|tool_search_output"
            "|local_shell_call|local_shell_call_output|shell_call|shell_call_output"
            "|apply_patch_call|apply_patch_call_output|program|program_output|multi_agent_call"
            "|multi_agent_call_output>.call_id",
        ),
        Fields(
            Use.TEXT,
            "<function_call_output>.{output,name,namespace} <custom_tool_call_output>.{output,name}"
            " <local_shell_call_output|apply_patch_call_output|mcp_call>.output",
        ),
        Fields(
            Use.TEXT,
            "<computer_call>.{action,actions,pending_safety_checks}.**"
            " <computer_call_output>.acknowledged_safety_checks.**"
            " <local_shell_call>.action.** <shell_call>.action.** <shell_call_output>.output.**"
            " <apply_patch_call>.operation.** <tool_search_call>.arguments.**"
            " <web_search_call>.action.** <web_search_call>.results.**"
            " <mcp_list_tools>.{tools,error,server_label}.**"
            " <mcp_approval_request|mcp_call>.{arguments,name,server_label}"
            " <mcp_call>.error.** <mcp_approval_response>.{approve,reason}"
            " <program>.{code,fingerprint} <program_output>.result"
            " <multi_agent_call>.{action,arguments} <multi_agent_call_output>.action",
        ),
        Fields(Use.FREE, "<tool_search_call|tool_search_output>.execution"),
        Fields(Use.FREE, "<shell_call|shell_call_output>.max_output_length"),
        Fields(Use.FREE, "<shell_call>.environment<local>.skills.**"),
        Fields(Use.REFERENCE, "<shell_call>.environment<container_reference>.container_id"),
        Fields(
            Use.TEXT,
            "<file_search_call>.queries <file_search_call>.results[].{filename,score,text}"
            " <file_search_call>.results[].attributes.** <code_interpreter_call>.code"
            " <code_interpreter_call>.outputs[]<logs>.logs",
        ),
        Fields(Use.REFERENCE, "<file_search_call>.results[].{file_id,vector_store_id}"),
        Fields(Use.REFERENCE, "<code_interpreter_call>.container_id"),
        Fields(
            Use.IMAGE,
            "<code_interpreter_call>.outputs[]<image>.url <image_generation_call>.result"
            " <computer_call_output>.output<computer_screenshot|input_image>.image_url",
        ),
        Fields(
            Use.REFERENCE,
            "<computer_call_output>.output<computer_screenshot|input_image>.file_id",
        ),
        Fields(Use.FREE, "<computer_call_output>.output<computer_screenshot|input_image>.detail"),
        Fields(
            Use.TEXT,
            "<image_generation_call>.{action,background,output_format,quality,revised_prompt,size}"
            " <image_generation_call>.{error,svg_usage}.**",
        ),
        Fields(Use.FREE, "<configuration_update>.reasoning.{effort,summary}"),
        Fields(Use.TEXT, "<configuration_update>.text.** "),
        Fields(Use.COMPACTION, "<compaction_trigger>"),
        Fields(Use.FREE, "<message|function_call|reasoning>.internal_chat_message_metadata.**"),
    ),
)

_CONTENT = FieldSection(
    title="Parts of an item",
    at=(
        "input[]<message|agent_message>.content[]",
        "input[]<function_call_output|custom_tool_call_output|multi_agent_call_output>.output[]",
    ),
    rows=(
        Fields(
            Use.TEXT,
            "<input_text|output_text|text|summary_text|reasoning_text>.text <refusal>.refusal"
            " <encrypted_content>.encrypted_content <output_text>.{logprobs,parsed}.**"
            " <output_text>.annotations[]<file_citation|url_citation|container_file_citation"
            "|file_path>.{filename,index,start_index,end_index,title,url}",
        ),
        Fields(
            Use.REFERENCE,
            "<output_text>.annotations[]<file_citation|container_file_citation|file_path>"
            ".{file_id,container_id}",
        ),
        Fields(Use.IMAGE, "<input_image>.image_url"),
        Fields(Use.DOCUMENT, "<input_file>.{file_data,file_url}"),
        Fields(Use.REFERENCE, "<input_image|input_file>.file_id"),
        Fields(Use.FREE, "<input_image|input_file>.detail <input_file>.filename"),
        Fields(Use.AUDIO, "<input_audio>.{data,audio_url} <input_audio>.input_audio.data"),
        Fields(Use.FREE, "<input_audio>.format <input_audio>.input_audio.format"),
        *CACHE_MARK,
    ),
)

_TOOLS = FieldSection(
    title="Tools",
    at=_TOOLS_AT,
    rows=(
        Fields(
            Use.FREE,
            "allowed_callers defer_loading <function|custom>.async <function>.strict"
            " <computer|local_shell|apply_patch> <computer_use_preview>.environment"
            " <computer_use_preview>.{display_height,display_width}",
        ),
        Fields(
            Use.TEXT,
            "<function|custom|namespace|tool_search>.{name,description}"
            " <function>.{parameters,output_schema}.** <custom>.format.**"
            " <tool_search>.parameters.** <tool_search>.execution",
        ),
        Fields(
            Use.PROVIDER_TOOL,
            f"<web_search|web_search_preview|x_search|{_HOSTED}>",
        ),
        Fields(
            Use.PROVIDER_TOOL,
            "<tool_search>",
            "each search reads the prompt again",
            unless=({"execution": "client"},),
        ),
        Fields(
            Use.PROVIDER_TOOL,
            "<shell>",
            unless=({"environment": {"type": "local"}},),
        ),
        Fields(
            Use.FREE,
            "<web_search|web_search_preview>.{external_web_access,index_gated_web_access"
            ",search_context_size,search_content_types}"
            " <web_search|web_search_preview>.{filters,user_location}.**"
            " <web_search|x_search>.{enable_image_understanding,enable_video_understanding}"
            " <x_search>.{allowed_x_handles,excluded_x_handles,from_date,to_date}",
        ),
        Fields(
            Use.FREE,
            "<file_search>.{filters,ranking_options}.** <file_search>.max_num_results",
        ),
        Fields(Use.REFERENCE, "<file_search>.vector_store_ids <mcp>.{connector_id,tunnel_id}"),
        Fields(
            Use.FREE,
            "<mcp>.{allowed_tools,headers,require_approval}.** <mcp>.{authorization,server_label"
            ",server_description,server_url}",
        ),
        Fields(Use.REFERENCE, "<code_interpreter>.container"),
        Fields(Use.REFERENCE, "<code_interpreter>.container<auto>.file_ids"),
        Fields(
            Use.FREE,
            "<code_interpreter>.container<auto>.memory_limit"
            " <code_interpreter>.container<auto>.network_policy.**",
        ),
        Fields(
            Use.REFERENCE,
            "<code_interpreter>.container<auto>.skills[].skill_id"
            " <shell>.environment<container_auto>.file_ids"
            " <shell>.environment<container_auto>.skills[]<skill_reference>.skill_id"
            " <shell>.environment<container_reference>.container_id",
        ),
        Fields(
            Use.FREE,
            "<shell>.environment<container_auto>.memory_limit"
            " <shell>.environment<container_auto>.network_policy.**"
            " <shell>.environment<container_auto>.skills[]<skill_reference>.version"
            " <shell>.environment<container_auto>.skills[]<inline>.{name,description}"
            " <shell>.environment<container_auto>.skills[]<inline>.source.**"
            " <shell>.environment<local>.skills.**",
        ),
        Fields(
            Use.FREE,
            "<image_generation>.{action,background,complexity,frame_count,frame_duration_ms"
            ",input_fidelity,model,moderation,output_compression,output_format,partial_images"
            ",quality,size} <image_generation>.svg.**",
        ),
        Fields(Use.IMAGE, "<image_generation>.input_image_mask.image_url"),
        Fields(Use.REFERENCE, "<image_generation>.input_image_mask.file_id"),
    ),
)

_NAMESPACES = FieldSection(
    title="Tools of a namespace",
    at=tuple(f"{at}<namespace>.tools[]" for at in _TOOLS_AT),
    rows=(
        Fields(Use.FREE, "allowed_callers defer_loading async <function>.strict"),
        Fields(
            Use.TEXT,
            "<function|custom>.{name,description} <function>.{parameters,output_schema}.**"
            " <custom>.format.**",
        ),
    ),
)

RESPONSES: Final = Table("responses", _BODY, OPTIONS, _EXTRA, _ITEMS, _CONTENT, _TOOLS, _NAMESPACES)
