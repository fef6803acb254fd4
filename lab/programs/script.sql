-- Inserts, an index, a join, groups, deletions. The lab writes the number of rows for COUNT.
create table entry (id integer primary key, key integer, text text);
with recursive number(n) as (select 1 union all select n + 1 from number where n < COUNT)
insert into entry select n, (n * 7919) % 1000003, substr(hex(zeroblob(60)), 1, 20 + n % 101) from number;
create index by_key on entry (key, text);
select count(*), sum(length(text)), sum(key) from entry;
select count(*), sum(one.key) from entry one join entry two on one.key = two.id;
select sum(length(list)) from (select group_concat(text) list from entry group by key % 1000);
delete from entry where id % 3 = 0;
select count(*), sum(id) from entry;
