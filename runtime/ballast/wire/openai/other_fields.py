"""Fields of text and chat completions in the APIs of OpenAI, vLLM, SGLang and llama.cpp's server that have no effect
here, or are refused because they would change the reply.

Sources: protocol.py of the OpenAI entrypoints of vLLM and SGLang, and tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule

_RECORDS = NoEffect("for records, which this server does not keep")
_ONE_CACHE = NoEffect("common prefixes are cached automatically, which does not change the text")
_ONLY_TEXT = NoEffect("for images, audio and video, which are refused")
_NO_SHIFT = NoEffect("a request that fills the context ends; its beginning is not discarded")
_DRY = NoEffect("has an effect only with dry_multiplier")
_MIROSTAT = NoEffect("has an effect only with mirostat")
_NO_LORA = "this server has no adapters"
_NO_SPLIT = "one server computes both prompts and replies"
_NO_SAMPLER = "this sampling method is not implemented"
_NO_INTERNALS = "this server does not report the model's internal values"
_NO_CODE = "this server does not run code that clients send"

GENERATION_RULES: Mapping[str, Rule] = {
    # OpenAI
    "metadata": _RECORDS,
    "prompt_cache_key": _ONE_CACHE,
    "prompt_cache_options": _ONE_CACHE,
    "prompt_cache_retention": _ONE_CACHE,
    "safety_identifier": _RECORDS,
    "service_tier": NoEffect("there is only one service tier"),
    "store": _RECORDS,
    "user": _RECORDS,
    # vLLM
    "early_stopping": NoEffect("has an effect only with use_beam_search"),
    "ec_transfer_params": Refused(_NO_SPLIT, ({},)),
    "guided_decoding_backend": NoEffect("llguidance is the only backend"),
    "guided_whitespace_pattern": Refused("the server limits the white space in JSON"),
    "kv_transfer_params": Refused(_NO_SPLIT, ({},)),
    "length_penalty": NoEffect("has an effect only with use_beam_search"),
    "logits_processors": Refused(_NO_CODE, ([],)),
    "logprob_token_ids": Refused("only the most likely tokens are reported; see logprobs", ([],)),
    "media_io_kwargs": _ONLY_TEXT,
    "mm_processor_kwargs": _ONLY_TEXT,
    "repetition_detection": Refused("repetition does not end a reply"),
    "return_mm_kwargs": _ONLY_TEXT,
    "return_token_offsets": NoEffect("vLLM uses it only on its render endpoints"),
    "routed_experts_prompt_start": NoEffect("has an effect only with return_routed_experts"),
    "session_id": _RECORDS,
    "spaces_between_special_tokens": NoEffect("this model's tokenizer does not put spaces between tokens"),
    "stream_interval": NoEffect("a stream sends the new text of every step"),
    "use_beam_search": Refused("this server has no beam search", (False,)),
    "vllm_xargs": Refused("vLLM's extensions are not supported", ({},)),
    "watermarking": Refused("replies are not watermarked", (False,)),
    # SGLang
    "bootstrap_host": Refused(_NO_SPLIT),
    "bootstrap_port": Refused(_NO_SPLIT),
    "bootstrap_room": Refused(_NO_SPLIT),
    "custom_labels": _RECORDS,
    "custom_logit_processor": Refused(_NO_CODE, ("", [])),
    "custom_params": NoEffect("has an effect only with custom_logit_processor"),
    "data_parallel_rank": Refused("this server has one engine", (0,)),
    "disagg_prefill_dp_rank": Refused(_NO_SPLIT),
    "images_config": _ONLY_TEXT,
    "lora_path": Refused(_NO_LORA, ("", [])),
    "max_dynamic_patch": _ONLY_TEXT,
    "min_dynamic_patch": _ONLY_TEXT,
    "ngram_corpus_id": NoEffect("a setting for speculative decoding, which does not change the text"),
    "no_stop_trim": Alias("include_stop_str_in_output"),
    "return_cached_tokens_details": Refused("usage reports only the number of cached tokens", (False,)),
    "return_hidden_states": Refused(_NO_INTERNALS, (False,)),
    "return_meta_info": Refused(_NO_INTERNALS, (False,)),
    "return_prompt_token_ids": Refused(
        "use return_token_ids, which returns the ids of the prompt and of the reply", (False,)
    ),
    "return_routed_experts": Refused(_NO_INTERNALS, (False,)),
    "rid": Alias("request_id"),
    "routed_dp_rank": Refused("this server has one engine", (0,)),
    "routed_experts_start_len": NoEffect("has an effect only with return_routed_experts"),
    "session_params": Refused("this server does not keep sessions; send the whole conversation", ({},)),
    "stop_regex": Refused("patterns cannot end a reply; use stop or stop_token_ids", ("", [])),
    "use_audio_in_video": _ONLY_TEXT,
    # llama.cpp
    "adaptive_decay": NoEffect("has an effect only with adaptive_target"),
    "adaptive_target": Refused(_NO_SAMPLER, (-1, -1.0)),
    "backend_sampling": NoEffect("sampling always runs on the CPU"),
    "cache_prompt": _ONE_CACHE,
    "dry_allowed_length": _DRY,
    "dry_base": _DRY,
    "dry_multiplier": Refused(_NO_SAMPLER, (0, 0.0)),
    "dry_penalty_last_n": _DRY,
    "dry_sequence_breakers": _DRY,
    "dynatemp_exponent": NoEffect("has an effect only with dynatemp_range"),
    "dynatemp_range": Refused(_NO_SAMPLER, (0, 0.0)),
    "id_slot": NoEffect("requests are not assigned to slots"),
    "lora": Refused(_NO_LORA, ([],)),
    "min_keep": Refused(_NO_SAMPLER, (0, 1)),
    "mirostat": Refused(_NO_SAMPLER, (0,)),
    "mirostat_eta": _MIROSTAT,
    "mirostat_tau": _MIROSTAT,
    "n_cache_reuse": _ONE_CACHE,
    "n_cmpl": Alias("n"),
    "n_discard": _NO_SHIFT,
    "n_indent": Refused("the indentation of lines is not enforced", (0,)),
    "n_keep": _NO_SHIFT,
    "n_predict": Alias("max_tokens"),
    "penalty_last_n": Alias("repeat_last_n"),
    "post_sampling_probs": Refused("probabilities are reported as the model gives them, before sampling", (False,)),
    "repeat_penalty": Alias("repetition_penalty"),
    "response_fields": Refused("replies always have all fields", ([],)),
    "samplers": Refused("the order is fixed: penalties, temperature, top_k, top_p, min_p", ([],)),
    "slot_id": NoEffect("requests are not assigned to slots"),
    "speculative.n_max": NoEffect("a setting for speculative decoding, which does not change the text"),
    "speculative.n_min": NoEffect("a setting for speculative decoding, which does not change the text"),
    "speculative.p_min": NoEffect("a setting for speculative decoding, which does not change the text"),
    "sse_ping_interval": NoEffect("the server decides when a silent stream sends a comment"),
    "t_max_predict_ms": Refused("only the server's --request_timeout_s limits the time", (0, -1)),
    "tfs_z": Refused(_NO_SAMPLER, (1, 1.0)),
    "top_n_sigma": Refused(_NO_SAMPLER, (-1, -1.0, 0, 0.0)),
    "typical_p": Refused(_NO_SAMPLER, (1, 1.0)),
    "xtc_probability": Refused(_NO_SAMPLER, (0, 0.0)),
    "xtc_threshold": NoEffect("has an effect only with xtc_probability"),
}
"""Of both endpoints."""

CHAT_RULES: Mapping[str, Rule] = {
    **GENERATION_RULES,
    # OpenAI
    "audio": Refused("this server generates only text"),
    "function_call": Refused("deprecated by OpenAI; use tool_choice", ("none", "auto")),
    "functions": Refused("deprecated by OpenAI; use tools", ([],)),
    "modalities": Refused("this server generates only text", (["text"],)),
    "prediction": NoEffect("a hint that makes some other servers faster; the reply is the same"),
    "verbosity": NoEffect("a hint that this model was not trained to follow"),
    "web_search_options": Refused("this server does not search the web"),
    # vLLM, SGLang
    "documents": Refused("this server does not pass documents to templates; put them into a message", ([],)),
    "echo": Refused("a chat reply does not repeat its prompt; see continue_final_message", (False,)),
    "input_ids": Refused("the prompt is made from the messages; send token ids to /v1/completions", ([],)),
    "stream_reasoning": Refused("reasoning is always streamed as it is generated", (True,)),
    "task": Refused("the model's chat template does not support tasks"),
    # the makers of Qwen and GLM
    "thinking_budget": Alias("thinking_token_budget"),
    "tool_stream": NoEffect("calls are always streamed as they are generated"),
    # llama.cpp
    "reasoning_budget_tokens": Alias("thinking_token_budget"),
    "thinking_budget_tokens": Alias("thinking_token_budget"),
    "parse_tool_calls": Refused("tool calls are always separated from the text", (True,)),
}

TEXT_RULES: Mapping[str, Rule] = {
    **GENERATION_RULES,
    "include_reasoning": NoEffect("text completions are not split into reasoning and answer"),
    "separate_reasoning": NoEffect("text completions are not split into reasoning and answer"),
    "thinking_token_budget": Refused(
        "text completions are not split into reasoning and answer; use /v1/chat/completions", (-1,)
    ),
    "prompt_embeds": Refused("prompts are texts or token ids"),
}
