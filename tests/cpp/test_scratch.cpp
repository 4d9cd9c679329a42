#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/scratch.h"
#include "check.h"

using ballast::Scratch;

namespace {

// Buffers of one call, each filled with a different number.
std::vector<Scratch<int64_t>> filled(const std::vector<int64_t>& sizes) {
  std::vector<Scratch<int64_t>> pieces;
  for (size_t i = 0; i < sizes.size(); ++i) {
    pieces.emplace_back(sizes[i]);
    std::fill_n(pieces.back().get(), sizes[i], static_cast<int64_t>(i));
  }
  return pieces;
}

void check_filled(const std::vector<Scratch<int64_t>>& pieces, const std::vector<int64_t>& sizes) {
  for (size_t i = 0; i < sizes.size(); ++i) {
    const int64_t* piece = pieces[i].get();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece) % 4096, 0u);
    EXPECT(std::all_of(piece, piece + sizes[i],
                       [&](int64_t value) { return value == static_cast<int64_t>(i); }));
  }
}

std::set<const int64_t*> places(const std::vector<Scratch<int64_t>>& pieces) {
  std::set<const int64_t*> places;
  for (const Scratch<int64_t>& piece : pieces) places.insert(piece.get());
  return places;
}

// Small buffers, buffers of several pages, and buffers with huge pages.
const std::vector<int64_t> kSizes = {1, 1000, 7, 300000, 0, 65};

}  // namespace

TEST(buffers_do_not_overlap) {
  for (int call = 0; call < 3; ++call) check_filled(filled(kSizes), kSizes);
}

TEST(the_next_call_reuses_released_buffers) {
  filled(kSizes);
  const std::set<const int64_t*> second = places(filled(kSizes));
  EXPECT(places(filled(kSizes)) == second);
  EXPECT(second.count(filled({5, 6})[0].get()) == 1);
}

TEST(buffers_in_use_are_not_handed_out_again) {
  filled(kSizes);
  std::vector<Scratch<int64_t>> first = filled(kSizes);
  {
    const std::vector<Scratch<int64_t>> between = filled(kSizes);
  }
  const std::vector<Scratch<int64_t>> second = filled(kSizes);
  check_filled(first, kSizes);
  first.erase(first.begin(), first.begin() + 3);  // in any order
  const std::vector<Scratch<int64_t>> third = filled(kSizes);
  check_filled(second, kSizes);
  check_filled(third, kSizes);
}

TEST(a_larger_call_fits_and_is_kept) {
  filled(kSizes);
  const std::vector<int64_t> larger = {400000, 3, 500000};
  check_filled(filled(larger), larger);
  const std::set<const int64_t*> second = places(filled(larger));
  EXPECT(places(filled(larger)) == second);
}

TEST(a_moved_buffer_is_released_once) {
  filled(kSizes);
  const int64_t* begin = filled({8})[0].get();
  {
    Scratch<int64_t> piece(8);
    Scratch<int64_t> moved(std::move(piece));
    Scratch<int64_t> assigned;
    assigned = std::move(moved);
    EXPECT(assigned.get() == begin);
    EXPECT(Scratch<int64_t>(8).get() != begin);
  }
  EXPECT(filled({8})[0].get() == begin);
}

TEST(a_repeatedly_acquired_buffer_keeps_its_address) {
  const Scratch<int64_t> outer(10);
  const int64_t* place = Scratch<int64_t>(1000).get();
  for (int call = 0; call < 100; ++call) EXPECT(Scratch<int64_t>(1000).get() == place);
}

TEST(threads_have_separate_buffers) {
  std::set<const int64_t*> here = places(filled(kSizes));
  std::thread([&] {
    const std::vector<Scratch<int64_t>> there = filled(kSizes);
    for (const int64_t* place : places(there)) EXPECT_EQ(here.count(place), 0u);
    check_filled(there, kSizes);
  }).join();
  EXPECT(places(filled(kSizes)) == here);
}
