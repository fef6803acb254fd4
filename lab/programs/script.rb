# Hashes, arrays and strings that come and go. ruby script.rb COUNT
count, sum, kept = ARGV[0].to_i, 0, {}
(1..count).each do |number|
  words = (1..8).map { |word| "a word that is longer than a slot: #{number * word % 1009}" }
  kept[number % 5003] = { number: number, words: words, text: words.join(" ") }
  sum = (sum * 31 + kept[number % 5003][:text].size) % 1_000_000_007
end
seen = Hash.new(0)
kept.each_value { |entry| entry[:text].split(" ").each { |word| seen[word] += 1 } }
seen.each { |word, times| sum += word.size * times }
puts sum
