// Parsing of the texts in /proc and /sys, independent of the process's locale.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

namespace ballast {

// The words of `text` between separators, without empty ones. They are views into the text.
inline std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> words;
  for (size_t begin = text.find_first_not_of(separators); begin != std::string_view::npos;) {
    const size_t end = text.find_first_of(separators, begin);
    words.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(separators, end);
  }
  return words;
}

// nullopt unless the whole text is one number.
template <class Number>
std::optional<Number> to_number(std::string_view text, int base = 10) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace ballast
