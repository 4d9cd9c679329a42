// The framework of the C++ tests. No Python package provides GoogleTest, and the tests use no other downloads
// (decision 2 in docs/decisions).
//
//   TEST(name_as_a_sentence) { EXPECT(condition); EXPECT_EQ(a, b); EXPECT_THROWS(expression, exception); }
//
// One file, one executable: include this header once and write tests; main() is here.
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int failures = 0;

struct Register {
  Register(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& story) {
  ++failures;
  std::fprintf(stderr, "%s:%d: %s\n", file, line, story.c_str());
}

template <class A, class B>
void expect_eq(const A& a, const B& b, const char* text_a, const char* text_b, const char* file, int line) {
  if (a == b) return;
  std::ostringstream story;
  story << text_a << " == " << text_b << ", but " << +a << " != " << +b;
  fail(file, line, story.str());
}

}  // namespace check

#define TEST(name)                                            \
  static void test_##name();                                  \
  static check::Register register_##name(#name, test_##name); \
  static void test_##name()

#define EXPECT(condition) ((condition) ? (void)0 : check::fail(__FILE__, __LINE__, "expected " #condition))
#define EXPECT_EQ(a, b) check::expect_eq((a), (b), #a, #b, __FILE__, __LINE__)
#define EXPECT_THROWS(expression, exception)                                                      \
  do {                                                                                            \
    bool threw = false;                                                                           \
    try {                                                                                         \
      (void)(expression);                                                                         \
    } catch (const exception&) {                                                                  \
      threw = true;                                                                               \
    }                                                                                             \
    if (!threw) check::fail(__FILE__, __LINE__, "expected " #expression " to throw " #exception); \
  } while (0)

int main() {
  int failed_tests = 0;
  for (const check::Test& test : check::tests()) {
    const int before = check::failures;
    try {
      test.run();
    } catch (const std::exception& error) {
      check::fail(test.name, 0, std::string("threw: ") + error.what());
    }
    const bool ok = check::failures == before;
    failed_tests += !ok;
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name);
  }
  std::printf("%zu passed, %d failed\n", check::tests().size() - static_cast<size_t>(failed_tests),
              failed_tests);
  return failed_tests == 0 ? 0 : 1;
}
