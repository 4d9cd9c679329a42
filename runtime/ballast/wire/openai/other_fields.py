"""Fields of text and chat completions that clients of OpenAI, vLLM, SGLang and llama.cpp's server send and that have no
effect here, or are refused because they would change the reply.

Their lists: vLLM's and SGLang's protocol.py of the OpenAI entrypoint, and tools/server/README.md of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast.wire.field_rules import Alias, NoEffect, Refused, Rule

_RECORDS = NoEffect("for the provider's own records, and this server keeps none")
_ONE_CACHE = NoEffect("the prefix cache finds every common prefix by itself, and leaves the text as it is")
_ONLY_TEXT = NoEffect("about images, audio and video, which are refused where they are sent")
_NO_SHIFT = NoEffect("a request that fills the context ends; nothing of it is discarded")
_DRY = NoEffect("acts only with dry_multiplier")
_MIROSTAT = NoEffect("acts only with mirostat")
_NO_LORA = "this server has no adapters"
_NO_SPLIT = "prompts and replies are computed by one server here"
_NO_SAMPLER = "this server has no such way to choose tokens"
_NO_INTERNALS = "this server reports nothing of the model's inside"
_NO_CODE = "this server runs no code of clients"

GENERATION_RULES: Mapping[str, Rule] = {
    # OpenAI
    "metadata": _RECORDS,
    "prompt_cache_key": _ONE_CACHE,
    "prompt_cache_options": _ONE_CACHE,
    "prompt_cache_retention": _ONE_CACHE,
    "safety_identifier": _RECORDS,
    "service_tier": NoEffect("there is one tier"),
    "store": _RECORDS,
    "user": _RECORDS,
    # vLLM
    "early_stopping": NoEffect("acts only with use_beam_search"),
    "ec_transfer_params": Refused(_NO_SPLIT, ({},)),
    "guided_decoding_backend": NoEffect("there is one, llguidance"),
    "guided_whitespace_pattern": Refused("the white space of JSON is bounded by the server"),
    "kv_transfer_params": Refused(_NO_SPLIT, ({},)),
    "length_penalty": NoEffect("acts only with use_beam_search"),
    "logits_processors": Refused(_NO_CODE, ([],)),
    "logprob_token_ids": Refused("log probabilities are those of the most likely tokens; see logprobs", ([],)),
    "media_io_kwargs": _ONLY_TEXT,
    "mm_processor_kwargs": _ONLY_TEXT,
    "repetition_detection": Refused("a reply is not ended because it repeats itself"),
    "return_mm_kwargs": _ONLY_TEXT,
    "return_token_offsets": NoEffect("vLLM reads it on its render endpoints alone"),
    "routed_experts_prompt_start": NoEffect("acts only with return_routed_experts"),
    "session_id": _RECORDS,
    "spaces_between_special_tokens": NoEffect("this model's tokenizer puts no spaces between tokens"),
    "stream_interval": NoEffect("a stream sends what each step of the model brings"),
    "use_beam_search": Refused("this server has no beam search", (False,)),
    "vllm_xargs": Refused("vLLM's extensions are not here", ({},)),
    "watermarking": Refused("replies are not watermarked", (False,)),
    # SGLang
    "bootstrap_host": Refused(_NO_SPLIT),
    "bootstrap_port": Refused(_NO_SPLIT),
    "bootstrap_room": Refused(_NO_SPLIT),
    "custom_labels": _RECORDS,
    "custom_logit_processor": Refused(_NO_CODE, ("", [])),
    "custom_params": NoEffect("acts only with custom_logit_processor"),
    "data_parallel_rank": Refused("this server has one engine", (0,)),
    "disagg_prefill_dp_rank": Refused(_NO_SPLIT),
    "images_config": _ONLY_TEXT,
    "lora_path": Refused(_NO_LORA, ("", [])),
    "max_dynamic_patch": _ONLY_TEXT,
    "min_dynamic_patch": _ONLY_TEXT,
    "ngram_corpus_id": NoEffect("about speculative decoding, which leaves the text as it is"),
    "no_stop_trim": Alias("include_stop_str_in_output"),
    "return_cached_tokens_details": Refused("usage says how many tokens were cached, and no more", (False,)),
    "return_hidden_states": Refused(_NO_INTERNALS, (False,)),
    "return_meta_info": Refused(_NO_INTERNALS, (False,)),
    "return_prompt_token_ids": Refused("return_token_ids brings them, with those of the reply", (False,)),
    "return_routed_experts": Refused(_NO_INTERNALS, (False,)),
    "rid": Alias("request_id"),
    "routed_dp_rank": Refused("this server has one engine", (0,)),
    "routed_experts_start_len": NoEffect("acts only with return_routed_experts"),
    "session_params": Refused("this server keeps no sessions; send the whole conversation", ({},)),
    "stop_regex": Refused("a reply ends at texts and tokens, see stop and stop_token_ids, and at no pattern", ("", [])),
    "use_audio_in_video": _ONLY_TEXT,
    # llama.cpp
    "adaptive_decay": NoEffect("acts only with adaptive_target"),
    "adaptive_target": Refused(_NO_SAMPLER, (-1, -1.0)),
    "backend_sampling": NoEffect("tokens are chosen on the CPU, by the same rule everywhere"),
    "cache_prompt": _ONE_CACHE,
    "dry_allowed_length": _DRY,
    "dry_base": _DRY,
    "dry_multiplier": Refused(_NO_SAMPLER, (0, 0.0)),
    "dry_penalty_last_n": _DRY,
    "dry_sequence_breakers": _DRY,
    "dynatemp_exponent": NoEffect("acts only with dynatemp_range"),
    "dynatemp_range": Refused(_NO_SAMPLER, (0, 0.0)),
    "id_slot": NoEffect("requests have no slots of their own"),
    "lora": Refused(_NO_LORA, ([],)),
    "min_keep": Refused(_NO_SAMPLER, (0, 1)),
    "mirostat": Refused(_NO_SAMPLER, (0,)),
    "mirostat_eta": _MIROSTAT,
    "mirostat_tau": _MIROSTAT,
    "n_cache_reuse": _ONE_CACHE,
    "n_cmpl": Alias("n"),
    "n_discard": _NO_SHIFT,
    "n_indent": Refused("lines are not held to an indentation", (0,)),
    "n_keep": _NO_SHIFT,
    "n_predict": Alias("max_tokens"),
    "penalty_last_n": Alias("repeat_last_n"),
    "post_sampling_probs": Refused("probabilities are those of the model, before anything is sampled", (False,)),
    "repeat_penalty": Alias("repetition_penalty"),
    "response_fields": Refused("replies have all of their fields", ([],)),
    "samplers": Refused("the order is fixed: penalties, temperature, top_k, top_p, min_p", ([],)),
    "slot_id": NoEffect("requests have no slots of their own"),
    "speculative.n_max": NoEffect("about speculative decoding, which leaves the text as it is"),
    "speculative.n_min": NoEffect("about speculative decoding, which leaves the text as it is"),
    "speculative.p_min": NoEffect("about speculative decoding, which leaves the text as it is"),
    "sse_ping_interval": NoEffect("the server decides when a silent stream sends a comment"),
    "t_max_predict_ms": Refused("the server alone limits time, by --request_timeout_s", (0, -1)),
    "tfs_z": Refused(_NO_SAMPLER, (1, 1.0)),
    "top_n_sigma": Refused(_NO_SAMPLER, (-1, -1.0, 0, 0.0)),
    "typical_p": Refused(_NO_SAMPLER, (1, 1.0)),
    "xtc_probability": Refused(_NO_SAMPLER, (0, 0.0)),
    "xtc_threshold": NoEffect("acts only with xtc_probability"),
}
"""Of both endpoints."""

CHAT_RULES: Mapping[str, Rule] = {
    **GENERATION_RULES,
    # OpenAI
    "audio": Refused("this server writes only text"),
    "function_call": Refused("an older name of tool_choice, which is not read", ("none", "auto")),
    "functions": Refused("an older name of tools, which is not read", ([],)),
    "modalities": Refused("this server writes only text", (["text"],)),
    "prediction": NoEffect("a hint by which other servers answer faster; the reply is the same"),
    "verbosity": NoEffect("a hint, which this model was not trained to follow"),
    "web_search_options": Refused("this server searches nothing"),
    # vLLM, SGLang
    "documents": Refused("this server hands templates no documents; put them into a message", ([],)),
    "echo": Refused("a chat reply does not repeat its prompt; see continue_final_message", (False,)),
    "input_ids": Refused("a chat's prompt is made from its messages; /v1/completions takes token ids", ([],)),
    "stream_reasoning": Refused("reasoning is streamed as it comes", (True,)),
    "task": Refused("this model's template has no tasks"),
    # the makers of Qwen and GLM
    "thinking_budget": Alias("thinking_token_budget"),
    "tool_stream": NoEffect("calls are streamed as they come"),
    # llama.cpp
    "reasoning_budget_tokens": Alias("thinking_token_budget"),
    "thinking_budget_tokens": Alias("thinking_token_budget"),
    "parse_tool_calls": Refused("tool calls are always divided from the text", (True,)),
}

TEXT_RULES: Mapping[str, Rule] = {
    **GENERATION_RULES,
    "include_reasoning": NoEffect("a text is not divided into reasoning and answer"),
    "separate_reasoning": NoEffect("a text is not divided into reasoning and answer"),
    "thinking_token_budget": Refused("a text is not divided into reasoning and answer; see chats", (-1,)),
    "prompt_embeds": Refused("prompts are texts or token ids"),
}
