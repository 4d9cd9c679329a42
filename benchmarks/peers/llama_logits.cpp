// llama_logits MODEL THREADS < texts > logits
//
// Each line is the number of a prompt's tokens, then the ids of the prompt and of the text that follows it. For each
// token of that text, llama.cpp's logits at its position are written as float32. The prompt is computed at once, the
// text token by token, as llama.cpp generates it. The cache is float32 too.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "llama.h"

static void compute(llama_context *context, std::vector<llama_token> &tokens) {
    if (llama_decode(context, llama_batch_get_one(tokens.data(), int32_t(tokens.size()))) != 0) {
        std::cerr << "llama_decode failed\n";
        std::exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        std::cerr << "llama_logits MODEL THREADS\n";
        return 2;
    }
    llama_backend_init();
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    llama_model *model = llama_model_load_from_file(argv[1], model_params);
    if (model == nullptr) return 1;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = params.n_batch = params.n_ubatch = 1024;
    params.n_threads = params.n_threads_batch = std::atoi(argv[2]);
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context *context = llama_init_from_model(model, params);
    if (context == nullptr) return 1;
    const size_t width = size_t(llama_vocab_n_tokens(llama_model_get_vocab(model)));
    std::string line;
    while (std::getline(std::cin, line)) {
        std::istringstream numbers(line);
        size_t prompt = 0;
        numbers >> prompt;
        std::vector<llama_token> ids;
        for (llama_token id; numbers >> id;) ids.push_back(id);
        llama_memory_clear(llama_get_memory(context), true);
        std::vector<llama_token> next(ids.begin(), ids.begin() + std::ptrdiff_t(prompt));
        for (size_t at = prompt; at < ids.size(); ++at) {
            compute(context, next);
            std::fwrite(llama_get_logits_ith(context, -1), sizeof(float), width, stdout);
            next = {ids[at]};
        }
    }
    return 0;
}
