"""Fields that several APIs share, and options that providers added to the API of another one.

The request types of ``openai`` 3.54.0, ``anthropic`` 2.12.0 and vLLM were read on 2026-11-29. The
options of Ollama, OpenRouter, LiteLLM, DeepSeek, xAI, Gemini, Groq, Mistral, Qwen and llama.cpp are
those that their users commonly send; they were not compared with the current references. A server
may offer all three APIs, so each of them knows all options.
"""

from typing import Final

from caseworker.models.fields.table import Fields, FieldSection, Use

SENDS_KEY_AWAY: Final = "it would send the operator's request and key elsewhere"
DETACHED: Final = "its reply would not pass through the gateway"
STORED: Final = "it refers to a prompt stored at the provider, which tenants would share"
TIER: Final = "the tier has a price of its own"
OTHER_MODEL: Final = "it may choose a model or provider with another price"
SEARCH: Final = "the provider would search the web, without a limit of searches"
NO_LIMIT: Final = "the provider executes it, and this API has no limit of its uses"
AUDIO_OUT: Final = "the reply would have audio or images, which cost more than text"
PIXELS: Final = "it changes how many tokens an image or a video has"
OVERRIDES: Final = "it would override a field of the body that the gateway reads"
OTHER_LIMIT: Final = "it is a limit of the output that the gateway does not lower; use max_tokens"

CACHE_MARK: Final = (
    Fields(Use.CACHE, "cache_control prompt_cache_breakpoint"),
    Fields(Use.FREE, "cache_control.{type,scope} prompt_cache_breakpoint.mode"),
    Fields(Use.FREE, "cache_control.ttl", values=("5m", "1h")),
    Fields(Use.FREE, "prompt_cache_breakpoint.ttl", values=("30m", "12h")),
)
"""Marks up to which the provider caches the prompt."""

TIERS: Final = (
    Fields(
        Use.FREE,
        "service_tier",
        "flex costs less, auto is what the account has, on_demand is Groq's default",
        values=("auto", "default", "flex", "on_demand", "standard", "standard_only"),
    ),
    Fields(
        Use.PRICED,
        "service_tier",
        TIER,
        values=("priority", "fast", "ultrafast", "scale", "performance"),
    ),
)

OPTIONS: Final = FieldSection(
    title="Options, in the body and in its `extra_body`",
    at=("", "extra_body"),
    rows=(
        Fields(
            Use.FREE,
            "frequency_penalty logit_bias.** logprobs metadata.** parallel_tool_calls"
            " presence_penalty reasoning_effort safety_identifier seed stop store temperature"
            " top_logprobs top_p user verbosity",
            "OpenAI",
        ),
        Fields(Use.FREE, "moderation.** prompt_cache_key prompt_cache_retention", "OpenAI"),
        Fields(Use.CACHE, "prompt_cache_options"),
        Fields(Use.FREE, "prompt_cache_options.mode"),
        Fields(Use.FREE, "prompt_cache_options.ttl", values=("30m", "12h")),
        Fields(Use.FREE, "response_format response_format.type"),
        Fields(
            Use.TEXT,
            "response_format.{schema,json_schema,structures,triggers,format,grammar}.**",
        ),
        Fields(Use.FREE, "modalities", values=("text",)),
        Fields(Use.PRICED, "modalities", AUDIO_OUT, values=("audio", "image")),
        Fields(Use.PRICED, "audio image_config", AUDIO_OUT),
        Fields(
            Use.PRICED,
            "prediction",
            "rejected tokens of the prediction cost as much as output, beyond the output limit",
        ),
        *TIERS,
        Fields(Use.PRICED, "web_search_options search_parameters search_options", SEARCH),
        Fields(
            Use.PRICED,
            "search_settings search_domain_filter search_recency_filter search_mode"
            " return_images return_related_questions",
            SEARCH,
        ),
        Fields(Use.PRICED, "enable_search web_search", SEARCH, unless=(False,)),
        Fields(
            Use.PRICED,
            "enable_code_interpreter enable_text_image_mixed",
            "the provider would execute a tool",
            unless=(False,),
        ),
        Fields(
            Use.PRICED, "plugins compound_custom google.tools", "the provider would execute tools"
        ),
        Fields(Use.PRICED, "models route provider preset fallbacks", OTHER_MODEL),
        Fields(
            Use.PRICED,
            "context_window_fallbacks content_policy_fallbacks tags litellm_metadata guardrails",
            OTHER_MODEL,
        ),
        Fields(Use.PRICED, "num_retries max_retries", "each repetition may cost again"),
        Fields(
            Use.PRICED,
            "input_cost_per_token output_cost_per_token drop_params additional_drop_params"
            " allowed_openai_params",
            "it changes what a proxy charges or passes on",
        ),
        Fields(
            Use.REFUSED,
            "api_base base_url api_key api_version organization custom_llm_provider"
            " extra_headers headers model_list litellm_credential_name user_config",
            SENDS_KEY_AWAY,
        ),
        Fields(Use.REFUSED, "background deferred", DETACHED, unless=(False,)),
        Fields(Use.REFUSED, "prompt prompt_id", STORED),
        Fields(Use.REFERENCE, "previous_response_id conversation container agent_id"),
        Fields(Use.REFERENCE, "conversation.id container.id"),
        Fields(
            Use.PRICED,
            "use_beam_search",
            "the number of beams is not known in all versions; use n",
            unless=(False,),
        ),
        Fields(
            Use.PRICED,
            "min_tokens min_new_tokens min_completion_tokens",
            "the model would write more than it needs, up to any output limit",
            unless=(0,),
        ),
        Fields(Use.PRICED, "max_new_tokens max_length n_predict num_predict", OTHER_LIMIT),
        Fields(Use.PRICED, "num_beams num_return_sequences", "it multiplies the output; use n"),
        Fields(
            Use.PRICED,
            "chat_template chat_template_kwargs.chat_template",
            "a template may make any number of tokens of a message",
        ),
        Fields(
            Use.PRICED,
            "mm_processor_kwargs media_io_kwargs vl_high_resolution_images",
            PIXELS,
            unless=(False,),
        ),
        Fields(
            Use.PRICED,
            "logits_processors kv_transfer_params ec_transfer_params vllm_xargs",
            "it runs code of the server",
        ),
        Fields(
            Use.FREE,
            "add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt"
            " continue_final_message echo guided_decoding_backend"
            " guided_grammar guided_regex guided_whitespace_pattern ignore_eos"
            " include_reasoning include_stop_str_in_output length_penalty min_p priority"
            " prompt_logprobs repetition_penalty request_id return_token_ids"
            " repetition_detection.** return_assistant_tokens_mask return_prompt_text"
            " return_token_offsets return_tokens_as_token_ids skip_special_tokens"
            " spaces_between_special_tokens stop_token_ids top_k"
            " truncate_prompt_tokens truncation_side",
            "vLLM",
        ),
        Fields(
            Use.TEXT,
            "documents.** chat_template_kwargs.{enable_thinking,thinking,thinking_mode"
            ",preserve_thinking,clear_thinking,reasoning_effort,add_generation_prompt"
            ",builtin_tools,custom_instructions,date_string,documents,python_tools,xml_tools}.**",
            "vLLM, SGLang, Groq; templates of models read other options, too",
        ),
        Fields(Use.TEXT, "guided_choice.** guided_json.** structured_outputs.**", "vLLM"),
        Fields(
            Use.FREE,
            "debug.** session_id top_a trace.** transforms usage.include",
            "OpenRouter",
        ),
        Fields(Use.FREE, "reasoning.{effort,enabled,exclude,summary}", "OpenRouter, Ollama"),
        Fields(Use.FREE, "thinking.{type,effort,clear_thinking,keep,display}", "DeepSeek, LiteLLM"),
        Fields(
            Use.THINKING,
            "chat_template_kwargs.thinking_budget reasoning.max_tokens thinking.budget_tokens"
            " thinking_budget thinking_token_budget",
            "OpenRouter, LiteLLM, Qwen, vLLM",
        ),
        Fields(
            Use.FREE,
            "cache.** caching litellm_call_id litellm_session_id litellm_trace_id mock_response"
            " no-log request_timeout timeout",
            "LiteLLM",
        ),
        Fields(
            Use.FREE,
            "citation_options disable_tool_validation exclude_domains include_domains"
            " reasoning_format",
            "Groq",
        ),
        Fields(
            Use.FREE,
            "document_image_limit document_page_limit prompt_mode random_seed safe_prompt",
            "Mistral",
        ),
        Fields(
            Use.FREE,
            "enable_thinking incremental_output max_input_tokens preserve_thinking result_format"
            " tool_stream do_sample clear_thinking disable_reasoning",
            "Qwen, GLM, Cerebras",
        ),
        Fields(Use.TEXT, "translation_options.**", "Qwen"),
        Fields(Use.FREE, "cache_prompt keep_alive return_progress timings_per_token", "llama.cpp"),
        Fields(
            Use.FREE,
            "google.thinking_config.{include_thoughts,includeThoughts}"
            " google.thinking_config.{thinking_level,thinkingLevel}"
            " google.safety_settings.**",
            "Gemini",
        ),
        Fields(
            Use.THINKING,
            "google.thinking_config.{thinking_budget,thinkingBudget}",
            "-1 lets the model choose",
            unless=(-1,),
        ),
        Fields(Use.REFERENCE, "google.{cached_content,cachedContent}"),
        *CACHE_MARK,
    ),
)
