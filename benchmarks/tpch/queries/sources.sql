-- The eight tables, captured, each with its primary key.
CREATE SOURCE region ON tpch.public.region;
CREATE SOURCE nation ON tpch.public.nation;
CREATE SOURCE supplier ON tpch.public.supplier;
CREATE SOURCE part ON tpch.public.part;
CREATE SOURCE partsupp ON tpch.public.partsupp;
CREATE SOURCE customer ON tpch.public.customer;
CREATE SOURCE orders ON tpch.public.orders;
CREATE SOURCE lineitem ON tpch.public.lineitem;
