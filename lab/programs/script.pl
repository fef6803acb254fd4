# Hashes, arrays and strings that come and go. perl script.pl COUNT
use strict;
use warnings;

my ($count, $sum, %kept) = ($ARGV[0], 0);
for my $number (1 .. $count) {
    my @words = map { "word " . ($number * $_ % 1009) } 1 .. 8;
    $kept{ $number % 5003 } = { number => $number, words => \@words, text => join(' ', @words) };
    $sum = ($sum * 31 + length $kept{ $number % 5003 }{text}) % 1000000007;
}
my %seen;
for my $key (sort { $a <=> $b } keys %kept) {
    $seen{$_}++ for split / /, $kept{$key}{text};
}
$sum += $seen{$_} * length $_ for sort keys %seen;
print "$sum\n";
